"""Files, command lines and defaults: which one wins, and what is said of a wrong one."""

import re
from pathlib import Path

import pytest

from gmmae.cli.arguments import parse_sweep, parse_train, read_sweep
from gmmae.cli.options import PARSERS
from gmmae.config.schema import changed, flatten
from gmmae.config.toml import find
from gmmae.scaling import strategies
from gmmae.sweep.grid import SweepConfig
from gmmae.workloads.configuration import read_config
from gmmae.workloads.registry import configuration
from tests.commands import as_words, one_line

DEFAULT = configuration()
CONFIGS = Path(__file__).parent.parent.parent / "configs"


@pytest.fixture
def toml(tmp_path):
    """Writes a TOML file and returns its path."""

    def write(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def train(*arguments):
    return parse_train(list(map(str, arguments)), "train.py")


def sweep(*arguments):
    return parse_sweep(list(map(str, arguments)), "gmmae sweep")


# Precedence


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(toml):
    path = toml("seed = 5\n[optim]\nbatch_size = 16\n[data]\nshape = 24\n[model]\nkernels = [9, 9, 7]")  # leaves 2 voxels
    words = ("--config", path, "--config", path, "--optim.batch-size", 8, "--stop.max_epochs=7", "--model.kernels", 3, 3, 3)
    wanted = {"seed": 5, "optim__batch_size": 8, "stop__max_epochs": 7, "data__shape": 24, "model__kernels": (3, 3, 3)}
    assert train(*words) == (changed(DEFAULT, **wanted), Path("runs/mine"))
    assert train(f"--config={path}", "--workdir", "here/there", "--model.kernels", 3, 3, 3)[1] == Path("here/there")


def test_command_line_over_sweep_file_over_base_file_over_defaults(toml):
    base = toml("[optim]\nbatch_size = 8\nscaling_warmup_epochs = 3\n[stop]\nmax_epochs = 9", "base.toml")
    path = toml(f"base = '{base}'\ndevices = [1, 3]\n[run.optim]\nscaling_warmup_epochs = 4\n[run.stop]\nmax_epochs = 10")
    config, workdir, *switches = sweep("--config", path, "--run.stop.max-epochs", 11, "--seeds", 2, 1, "--retry")
    run = changed(DEFAULT, stop__max_epochs=11, optim__scaling_warmup_epochs=4, optim__batch_size=8)
    assert config == SweepConfig(seeds=(2, 1), devices=(1, 3), run=run)
    assert (workdir, switches) == (Path("runs/mine"), [False, True, False])
    assert read_sweep(toml('base = "quickstart"')).run == read_config(CONFIGS / "quickstart.toml")


def test_values_of_every_kind_are_read(toml):
    lines = ["[data]", "validation = 0.5", "window = [-1200, 300]", "[log]", "tensorboard = false", "figure_epochs = []"]
    path = toml("\n".join([*lines, "[optim]", "epsilon = 1e-7", "[stop]", "max-epochs = 7", 'target = "none"']))
    window = (-1200.0, 300.0)
    wanted = {"data__validation": 0.5, "data__window": window, "log__tensorboard": False, "log__figure_epochs": ()}
    assert read_config(path) == changed(DEFAULT, **wanted, optim__epsilon=1e-7, stop__max_epochs=7)
    counts = [train("--data.validation", value, "--data.shape", 24, 32, 32)[0].settings.data for value in (100, "0.25")]
    assert [repr(data.validation) for data in counts] == ["100", "0.25"]  # a count stays a count
    assert counts[0].shape == (24, 32, 32)
    assert read_config(toml("")) == DEFAULT
    assert read_sweep(toml("")) == SweepConfig()


def test_none_and_auto_are_words():
    """The command line takes the words that the help shows."""
    words = "--scale-compute none --workdir none --stop.target none"
    parsed, config, _ = PARSERS["plan"](words.split(), "plan")
    assert (parsed.scale_compute, parsed.workdir, config.stop.target) == (None, None, None)
    assert PARSERS["plan"](["--scale-compute", "7"], "plan")[0].scale_compute == 7
    assert PARSERS["judge"](["real", "made", "--count", "all"], "judge")[0].count == "all"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_file_in_configs_is_read_by_path_and_by_name(path):
    parse, read = (sweep, read_sweep) if path.stem.startswith("sweep") else (train, read_config)
    assert find(path.stem).samefile(path)
    assert parse("--config", path.stem)[:2] == parse("--config", path)[:2] == (read(path), Path("runs") / path.stem)


def test_the_quick_files_are_the_defaults_and_a_workload_alone_has_no_target():
    assert train() == train("--config", "quickstart")
    assert sweep() == sweep("--config", "sweep_quick")
    assert train("--workload", "nodules")[0].stop.target is None
    targets = [read_config(CONFIGS / f"{name}.toml").stop.target for name in ("quickstart", "luna16_nodules", "paper", "unet")]
    assert targets == [0.001, 0.0016384, 0.0016384, None]


def test_a_sweep_may_have_a_workload_in_place_of_its_bases_with_arms_of_its_own(toml, tmp_path, monkeypatch):
    monkeypatch.setitem(strategies.STRATEGIES, "own-root", strategies.STRATEGIES["sqrt"])  # taken away again afterwards
    del strategies.STRATEGIES["own-root"]
    monkeypatch.chdir(tmp_path)
    lines = (
        "from gmmae.scaling.strategies import STRATEGIES, ScalingStrategy, batch_a_device",
        "from gmmae.workloads.nodules import Config, build",
        "STRATEGIES['own-root'] = ScalingStrategy('Own', batch_a_device, lambda k: k ** 0.25)",
    )
    own_workload = toml("\n".join(lines), "mine.py")
    path = toml('base = "quickstart"\nscaling = ["own-root"]\n[run]\nworkload = "mine.py"')
    config = read_sweep(path)
    assert config.run.workload == str(own_workload)  # not relative: cells may begin in another folder
    assert config.scaling == ("own-root",)
    assert config.run.optim == read_config(CONFIGS / "quickstart.toml").optim
    assert sweep("--config", path)[0] == config


# Switches and help


@pytest.mark.parametrize("given", [[True], [False], [False, True]])  # the last one counts
def test_every_boolean_option_is_a_switch(given):
    keys = [key for key, value in flatten(DEFAULT) if isinstance(value, bool)]
    found = dict(flatten(train(*(word for key in keys for value in given for word in as_words(key, value)))[0]))
    assert {found[key] for key in keys} == {given[-1]}


@pytest.mark.parametrize(
    ("command", "text", "parts"),
    [
        ("train", "[optim]\nlearning_rate = 0.0123", ["0.0123", "--workdir", "in voxels", "3: diverged or collapsed"]),
        (
            "sweep",
            "run_time_limit_s = 12.5",
            ["12.5", "--dry-run", "--run.optim.learning-rate", "4: a run crashed or timed out"],
        ),
        ("data inspect", "", ["Show the properties of one nodule", "a part that only it has"]),
    ],
)
def test_help_exits_with_0_and_names_options_exit_codes_and_the_files_defaults(toml, capsys, monkeypatch, command, text, parts):
    monkeypatch.setenv("COLUMNS", "80")  # one column of boxes
    with pytest.raises(SystemExit) as caught:
        PARSERS[command]([*(("--config", str(toml(text))) if text else ()), "--help"], command)
    assert not caught.value.code
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert [part for part in parts if part not in shown] == []


# Errors


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[optim]\nlerning-rate = 1", ["unknown key 'optim.lerning_rate'; did you mean 'optim.learning_rate'?"]),
        ("[data]\nqqqqqq = 1", ["unknown key 'data.qqqqqq'; valid keys: data.source, data.root, data.csv"]),
        ("data = 3", ["unknown key 'data'"]),
        ("[optim]\ndecay_epochs = 3", ["optim.decay_epochs must be a list", "got 3"]),
        ("[data]\nshape = []", ["data.shape must be", "at least 4; got []"]),
        ("scaling = ['strong']", ["scaling must be text; got ['strong']"]),
        ("[data]\naugment = 1", ["data.augment must be true or false; got 1"]),
        ("[data]\nwindow = [1]", ["data.window must be a list of 2", "got [1]"]),
        ("[optim]\nlearning_rate = nan", ["optim.learning_rate must be", "positive; got nan"]),
        ("a b c", ["must be TOML", "line 1"]),
        ("[stop]\ntarget = none  # no target", ["must be TOML", 'put none in quotes: "none"']),
        ("divices = [1]", ["unknown key 'divices'; did you mean 'devices'?"]),
        ("[run.optim]\nlerning_rate = 1", ["did you mean 'run.optim.learning_rate'?"]),
        ("devices = [2, 2]", ["devices must be", "different numbers of at least 1; got [2, 2]"]),
        ('base = ["quickstart"]', ["base: ", "must be a TOML file or one of ", "['quickstart']"]),
    ],
)
def test_an_error_in_a_file_names_the_file_the_key_and_what_is_allowed(toml, text, parts):
    path = toml(text)
    read, call = (read_sweep, sweep) if re.search("devices|run|base", f"{parts}{text}") else (read_config, train)
    message = one_line(read, path)
    assert [part for part in (str(path), *parts) if part not in message] == []
    assert one_line(call, "--config", path) == message


def test_a_file_that_is_no_text_or_a_folder_and_an_error_in_a_base_are_named(toml, tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "binary.toml must be TOML" in one_line(read_config, tmp_path / "binary.toml")
    assert "must be a readable file" in one_line(read_config, tmp_path)
    base = toml("sed = 1", "base.toml")
    path = toml(f"base = '{base}'")
    assert one_line(read_sweep, path) == f"{path}: base: {base}: unknown key 'sed'; did you mean 'seed'?"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--scaling fast", "scaling must be one of strong, .*best-batch; got 'fast'"),
        ("--data.shape big", "data.shape must be a whole number, or a list of .*; got 'big'"),
        ("--stop.max-epochs 1.5", "stop.max_epochs must be a whole number, at least 1; got '1.5'"),
        ("--stop.max-epochs=", "stop.max_epochs must be a whole number, at least 1; got ''"),
        ("--stop.target None", "stop.target must be a number, or none; got 'None'"),
        ("--stop.mode mid", "stop.mode must be one of min, max, or auto; got 'mid'"),
        ("--parallel.devices=none", "parallel.devices must be a whole number.*all; got 'none'"),
        ("--data.window a b", r"data.window must be a list of 2.*got \['a', 'b'\]"),
        ("--workdir=", "--workdir must be a path, or none; got ''"),
        ("--workload=", "workload must be not empty; got ''"),
        ("--config=", "--config must be a TOML file or one of .*; got ''"),
        ("--config nowhere", "--config must be a TOML file or one of .*quickstart.*'nowhere'"),
        ("--data.cache off", "data.cache must be.* a path with a / in it; got 'off'"),
        ("--data.shape 2", "data.shape must be.*at least 4; got 2"),
        ("--stop.monitor dice", "stop.mode must be min or max for stop.monitor = dice; got 'auto'"),
        ("--data.csv mine.csv", "data.source must be cubes for mine.csv; got 'synthetic'"),
        ("--config unet_quick --data.root here", "data.source must be cubes for here; got 'synthetic'"),
        ("sweep --jobs many", "^jobs must be a whole number.*'many'"),
        ("sweep --run.data.root here", "data.source must be cubes for here; got 'synthetic'"),
    ],
)
def test_a_wrong_value_is_one_line_with_what_must_hold_and_what_came(words, message):
    *of_sweep, rest = words.rsplit("sweep ", 1)
    assert re.search(message, one_line(sweep if of_sweep else train, *rest.split()))


@pytest.mark.parametrize(
    ("command", "words", "parts"),
    [
        ("train", "--optim.lerning-rate 1", ["--optim.lerning-rate", "Perhaps you meant", "--optim.learning-rate"]),
        ("train", "--no-log.tensorboard", ["Perhaps you meant", "--log.no-tensorboard"]),
        ("train", "--data.augment True", ["True"]),
        ("train", "extra", ["extra"]),
        ("train", "--seed", ["--seed", "Missing value"]),
        ("train", "--config", ["--config", "Missing value"]),
        ("sweep", "--run.optim.lerning-rate 1", ["--run.optim.learning-rate"]),
        ("report", "", ["FOLDER"]),
        ("report", "here --clustres pcie", ["--clusters"]),
    ],
)
def test_an_option_that_is_unknown_or_missing_ends_with_2_and_says_which(capsys, command, words, parts):
    with pytest.raises(SystemExit) as caught:
        PARSERS[command](words.split(), f"gmmae {command}")
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert [part for part in parts if part not in error] == []
