import dataclasses
from pathlib import Path

import pytest

from gmmae.cli.arguments import MISSING, SweepRequest, parse, parse_sweep, parse_train, parse_with_config, read_sweep
from gmmae.cli.options import InspectArguments, JudgeArguments, PlanArguments, PrepareArguments, ReportArguments, SynthArguments
from gmmae.cli.words import as_words
from gmmae.config.schema import Config, flatten
from gmmae.config.toml import find
from gmmae.scaling import strategies
from gmmae.sweep.grid import SweepConfig
from gmmae.system.errors import InputError
from gmmae.workloads import nodules
from gmmae.workloads.configuration import read_config
from gmmae.workloads.registry import configuration

DEFAULT = configuration()
CONFIGS = Path(__file__).parent.parent.parent / "configs"


@pytest.fixture
def toml(tmp_path):
    """Writes a TOML file and returns its path."""

    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def train(*arguments):
    return parse_train(arguments, "train.py")


# Precedence


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(toml):
    path = toml("seed = 5\n[optim]\nbatch_size = 16\nscaling_warmup_epochs = 10\n[model]\nfilters = [8, 8, 8]")
    config, _ = train("--config", str(path), "--optim.batch-size", "8", "--data.validation", "0.25")
    assert config.optim.batch_size == 8  # command line over file
    assert (config.seed, config.optim.scaling_warmup_epochs, config.settings.model.filters) == (
        5,
        10,
        (8, 8, 8),
    )  # file over defaults
    assert config.settings.data.validation == 0.25  # command line over defaults
    assert config.optim.learning_rate == DEFAULT.optim.learning_rate


def test_a_value_on_the_command_line_may_mend_the_file(toml):
    path = toml("[data]\nshape = 24\n[model]\nkernels = [9, 9, 7]")  # leaves 24 - 8 - 8 - 6 = 2 voxels
    config, _ = train("--config", str(path), "--model.kernels", "3", "3", "3")
    assert (config.settings.data.shape, config.settings.model.kernels) == (24, (3, 3, 3))


@pytest.mark.parametrize("spelling", [["--config", "{}"], ["--config={}"]])
def test_the_file_can_be_given_in_two_ways(toml, spelling):
    path = toml("seed = 5")
    assert train(*(part.format(path) for part in spelling))[0].seed == 5


@pytest.mark.parametrize("key", ["max-epochs", "max_epochs"])
def test_hyphens_and_underscores_are_one(toml, key):
    assert read_config(toml(f"[stop]\n{key} = 7")) == dataclasses.replace(
        DEFAULT, stop=dataclasses.replace(DEFAULT.stop, max_epochs=7)
    )
    assert train(f"--stop.{key}", "7")[0].stop.max_epochs == 7


def test_values_of_every_kind_are_read(toml):
    lines = ["[data]", "validation = 0.5", "window = [-1200, 300]", "[log]", "tensorboard = false", "figure_epochs = []"]
    config = read_config(toml("\n".join([*lines, "[optim]", "epsilon = 1e-7"])))
    assert (config.settings.data.validation, config.settings.data.window) == (0.5, (-1200.0, 300.0))
    assert (config.log.tensorboard, config.log.figure_epochs, config.optim.epsilon) == (False, (), 1e-7)
    assert isinstance(read_config(toml("[data]\nvalidation = 100")).settings.data.validation, int)  # a count stays a count


def test_an_empty_file_is_the_defaults(toml):
    assert read_config(toml("")) == DEFAULT


def test_the_work_directory_is_named_after_the_file_unless_given(toml):
    path = toml("")
    assert train("--config", str(path))[1] == Path("runs/mine")
    assert train("--config", str(path), "--workdir", "here/there")[1] == Path("here/there")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_file_in_configs_is_read_by_path_and_by_name(path):
    if path.stem.startswith("sweep"):
        pytest.skip("a sweep's file is no run's")
    assert find(path.stem).samefile(path)
    assert train("--config", path.stem) == (read_config(path), Path("runs") / path.stem)


def test_a_target_is_a_file_s_to_say_and_none_for_a_workload_alone():
    assert train("--workload", "nodules")[0].stop.target is None
    targets = {path.stem: read_config(path).stop.target for path in CONFIGS.glob("*.toml") if "sweep" not in path.stem}
    assert targets == {
        "adrenal_shapes": 0.013,
        "luna16_nodules": 0.0016384,
        "medmnist": None,
        "paper": 0.0016384,
        "nodules_generate": None,
        "quickstart": 0.001,
        "unet": None,
        "unet_quick": None,
    }
    assert sweep("--config", "sweep_luna16_nodules").config.run.stop.target == 0.0016384


def test_the_quick_files_are_the_defaults():
    assert train() == train("--config", "quickstart")
    assert sweep() == sweep("--config", "sweep_quick")


# Switches

PARSERS = {
    "train": lambda words: parse_train(words, "train")[0],
    "train --workload segmentation": lambda words: parse_train(["--workload", "segmentation", *words], "train")[0],
    "sweep": lambda words: parse_sweep(words, "sweep"),
    "sweep's file": lambda words: parse_sweep(words, "sweep").config,
    "plan": lambda words: parse_with_config(PlanArguments, words, "plan")[0],
    "data prepare": lambda words: parse(PrepareArguments(), words, "data prepare"),
    "data inspect": lambda words: parse(InspectArguments(MISSING), ["0", *words], "data inspect"),
    "data synth": lambda words: parse(SynthArguments(MISSING), ["scans", *words], "data synth"),
    "judge": lambda words: parse(JudgeArguments(MISSING, MISSING), ["real", "made", *words], "judge"),
}
"""The parser of each command that has switches."""


def values(parsed):
    """The arguments of a command by their names on the command line."""
    return parsed._asdict() if isinstance(parsed, SweepRequest) else dict(flatten(parsed))


KNOWN = {
    "train": {"data.augment", "model.fused", "distributed.auto", "log.tensorboard"},
    "train --workload segmentation": {"data.empty_slices"},
    "sweep": {"dry_run", "retry", "verbose"},
    "sweep's file": {"keep_checkpoints", "run.data.augment", "run.log.tensorboard"},
    "plan": {"data.augment"},
    "data prepare": {"refresh", "data.augment"},
    "data inspect": {"data.augment"},
    "data synth": {"compressed"},
    "judge": {"data.augment"},
}
"""Some switches of each command; the others are found."""


@pytest.mark.parametrize("command", PARSERS)
def test_every_boolean_option_is_a_switch(command):
    parse_words = PARSERS[command]
    switches = {key for key, value in values(parse_words([])).items() if isinstance(value, bool)}
    assert switches >= KNOWN[command]
    for given in ([True], [False], [False, True]):  # the last one counts
        found = values(parse_words([word for key in switches for value in given for word in as_words(key, value)]))
        assert {key: found[key] for key in switches} == dict.fromkeys(switches, given[-1])


@pytest.mark.parametrize("given", [["--data.augment", "True"], ["--data.augment=false"], ["--data.augment", "yes"]])
@pytest.mark.parametrize("command", [name for name in KNOWN if "data.augment" in KNOWN[name]])
def test_a_switch_with_a_value_is_told_what_to_write(command, given):
    value = given[-1].rpartition("=")[2]
    assert one_line(PARSERS[command], given) == (
        f"--data.augment is a switch without a value: write --data.augment or --data.no-augment; got {value!r}"
    )


def test_an_almost_right_switch_is_told_both_forms():
    message = one_line(train, "--no-log.tensorboard")
    assert message.endswith("--no-log.tensorboard; did you mean --log.tensorboard or --log.no-tensorboard?")


def test_none_and_auto_are_words():
    """The command line takes the words that the help shows."""
    parsed = PARSERS["plan"](["--scale-compute", "none", "--workdir", "none"])
    assert (parsed.scale_compute, parsed.workdir) == (None, None)
    assert PARSERS["plan"](["--scale-compute", "7"]).scale_compute == 7
    assert PARSERS["judge"](["--count", "all"]).count == "all"


# Help


SECTIONS = [*dataclasses.fields(nodules.Config), *(field for field in dataclasses.fields(Config) if field.name != "settings")]
INSPECT = lambda words: parse(InspectArguments(MISSING), words, "inspect")  # noqa: E731 one of several parsers


@pytest.mark.parametrize(
    ("parse_words", "text", "parts"),
    [
        (PARSERS["train"], "", [f"--{section.name.replace('_', '-')}" for section in SECTIONS]),
        (
            PARSERS["train"],
            "",
            ["--workdir", "--config", "--data.window", "in voxels", "3: diverged or collapsed", "75: another"],
        ),
        (PARSERS["train"], "[optim]\nlearning_rate = 0.0123", ["0.0123"]),  # the defaults shown are the file's
        (PARSERS["sweep"], "grace_s = 12.5", ["--dry-run", "--retry", "--timing.device-batches", "--run.optim.learning-rate"]),
        (PARSERS["sweep"], "grace_s = 12.5", ["12.5", "clusters to project times to", "4: a run crashed or timed out"]),
        (INSPECT, "", ["Show the properties of one nodule", "a part that only it has"]),
    ],
)
def test_help_exits_with_0_and_names_options_defaults_and_exit_codes(toml, capsys, monkeypatch, parse_words, text, parts):
    monkeypatch.setenv("COLUMNS", "80")  # one column of boxes
    with pytest.raises(SystemExit) as caught:
        parse_words([*(("--config", str(toml(text))) if text else ()), "--help"])
    assert caught.value.code in (0, None)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert [part for part in parts if part not in shown] == []


# Errors


def one_line(call, *arguments):
    with pytest.raises(InputError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert not set(message) & set("│╭╮╰╯─")
    assert message[0] == message[0].lower() or message.startswith("--")
    return message


def sweep(*arguments):
    return parse_sweep(arguments, "gmmae sweep")


ERRORS_IN_RUN_FILES = [
    ("[optim]\nlerning_rate = 1", ["unknown key 'optim.lerning_rate'; did you mean 'optim.learning_rate'?"]),
    ("[optim]\nlerning-rate = 1", ["did you mean 'optim.learning_rate'?"]),
    ("[optimm]\nbatch_size = 1", ["unknown key 'optimm.batch_size'", "did you mean 'optim.batch_size'?"]),
    ("sed = 1", ["unknown key 'sed'; did you mean 'seed'?"]),
    ("[data]\nqqqqqq = 1", ["unknown key 'data.qqqqqq'; valid keys: data.source, data.root, data.csv"]),
    ("data = 3", ["unknown key 'data'"]),
    ("[optim]\ndecay_epochs = 3", ["optim.decay_epochs must be a list", "got 3"]),
    ("[data]\nshape = []", ["data.shape must be", "at least 4; got []"]),
    ("scaling = ['strong']", ["scaling must be text; got ['strong']"]),
    ('scaling = "fast"', ["scaling", "'fast'", "strong", "linear-warmup"]),
    ('[data]\nshape = "big"', ["data.shape", "'big'"]),
    ("[data]\nshape = 16.5", ["data.shape", "16.5"]),
    ('[data]\naugment = "yes"', ["data.augment must be true or false; got 'yes'"]),
    ("[data]\naugment = 1", ["data.augment must be true or false; got 1"]),
    ("[data]\nwindow = [1]", ["data.window must be a list of 2", "got [1]"]),
    ("[data]\nshape = 2", ["data.shape must be", "at least 4; got 2"]),
    ("[optim]\nlearning_rate = -1", ["optim.learning_rate must be", "positive; got -1"]),
    ("[optim]\nlearning_rate = nan", ["optim.learning_rate must be", "positive; got nan"]),
    ("a b c", ["must be TOML", "line 1"]),
    ("[stop]\ntarget = none  # no target", ["must be TOML", 'put none in quotes: "none"']),
]
ERRORS_IN_SWEEP_FILES = [
    ("divices = [1]", ["unknown key 'divices'; did you mean 'devices'?"]),
    ("[run.optim]\nlerning_rate = 1", ["did you mean 'run.optim.learning_rate'?"]),
    ("devices = 4", ["devices must be a list", "got 4"]),
    ("[run.data]\nwindow = [1]", ["run.data.window must be a list of 2", "got [1]"]),
    ("devices = [2, 2]", ["devices must be", "different numbers of at least 1; got [2, 2]"]),
    ('scaling = ["strong", "fast"]', ["scaling", "'fast'"]),
    ("[run]\nseed = 3", ["run.seed must be left to the sweep, which sets it for each run; got 3: remove it"]),
    ("[run.data]\nshape = 2", ["data.shape must be", "at least 4; got 2"]),
    ('base = ["quickstart"]', ["base must be a TOML file, or the name of one in configs/; got ['quickstart']"]),
]


@pytest.mark.parametrize(
    ("read", "call", "text", "parts"),
    [
        *((read_config, train, *row) for row in ERRORS_IN_RUN_FILES),
        *((read_sweep, sweep, *row) for row in ERRORS_IN_SWEEP_FILES),
    ],
)
def test_an_error_in_a_file_names_the_file_the_key_and_what_is_allowed(toml, read, call, text, parts):
    path = toml(text)
    message = one_line(read, path)
    for part in (str(path), *parts):
        assert part in message
    assert one_line(call, "--config", str(path)) == message


def report(*arguments):
    return parse(ReportArguments(MISSING), arguments, "gmmae report")


ERRORS_OF_TRAIN = [
    (["--scaling", "fast"], ["scaling must be one of strong, ", "best-batch; got 'fast'"]),
    (["--data.shape", "big"], ["--data.shape must be a whole number, or a list of ", "; got 'big'"]),
    (["--stop.max-epochs", "1.5"], ["--stop.max-epochs must be a whole number", "got '1.5'"]),
    (["--stop.target", "None"], ["--stop.target must be a number, or none; got 'None'"]),
    (["--parallel.devices=none"], ["--parallel.devices must be a whole number", "all; got 'none'"]),
    (["--data.window", "a", "b"], ["--data.window must be a list of 2", "got 'a b'"]),
    (["--workdir", ""], ["--workdir must not be empty; got '': leave it out"]),
    (["--workload="], ["--workload must not be empty; got '': leave it out"]),
    (["--data.cache", "off"], ["data.cache must be", "a path with a / in it; got 'off'"]),
    (["--seed"], ["--seed", "missing value"]),
    (["--data.shape", "2"], ["data.shape must be", "at least 4; got 2"]),
    (["--optim.lerning-rate", "1"], ["--optim.lerning-rate", "did you mean --optim.learning-rate?"]),
    (["--zzz", "1"], ["--zzz"]),
    (["extra"], ["extra"]),
    (["--stop.monitor", "dice"], ["stop.mode must be min or max for stop.monitor = dice; got 'auto'"]),
    (["--data.csv", "mine.csv"], ["data.source must be cubes for mine.csv; got 'synthetic'"]),
    (["--config", "unet_quick", "--data.root", "here"], ["data.source must be cubes for here; got 'synthetic'"]),
    (["--config"], ["--config must be followed by a value"]),
    (["--config", "nowhere"], ["--config must be a TOML file or one of", "quickstart", "'nowhere'"]),
]
ERRORS_OF_SWEEP = [
    (["--run.optim.lerning-rate", "1"], ["did you mean --run.optim.learning-rate?"]),
    (["--jobs", "many"], ["--jobs", "'many'"]),
    (["--jobs", "2", "--mode", "measured"], ["jobs must be 1 where times are measured, mode = measured; got 2"]),
    (["--run.stop.monitor", "dice"], ["stop.mode must be min or max for stop.monitor = dice; got 'auto'"]),
    (["--run.data.root", "here"], ["data.source must be cubes for here; got 'synthetic'"]),
    (["--run.scaling", "weak"], ["run.scaling must be left to the sweep"]),
]


@pytest.mark.parametrize(
    ("call", "arguments", "parts"),
    [
        *((train, *row) for row in ERRORS_OF_TRAIN),
        *((sweep, *row) for row in ERRORS_OF_SWEEP),
        (report, [], ["folder"]),
        (report, ["here", "--clustres", "pcie"], ["--clustres"]),
    ],
)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_an_error_on_the_command_line_is_one_line(monkeypatch, call, arguments, parts, columns):
    monkeypatch.setenv("COLUMNS", columns)  # the parser draws its frame to the terminal's width
    message = one_line(call, *arguments)
    for part in parts:
        assert part.lower() in message.lower()


def test_a_file_that_is_no_text_and_a_folder_are_refused(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert f"{path} must be TOML" in one_line(read_config, path)
    assert "must be a readable file" in one_line(read_config, tmp_path)
    assert "must be a readable file" in one_line(read_config, tmp_path / "missing.toml")


# Sweeps


@pytest.fixture
def base(tmp_path):
    """A training configuration for sweeps to begin with."""
    path = tmp_path / "base.toml"
    path.write_text(
        "[optim]\nbatch_size = 8\nscaling_warmup_epochs = 3\n[stop]\nmax_epochs = 9\n[data]\nsamples = 100", "utf-8"
    )
    return path


def test_command_line_over_sweep_file_over_base_file_over_defaults(toml, base):
    path = toml(f"base = '{base}'\ndevices = [1, 3]\n[run.optim]\nscaling_warmup_epochs = 4\n[run.stop]\nmax_epochs = 10")
    config = sweep("--config", str(path), "--run.stop.max-epochs", "11", "--seeds", "2", "1").config
    assert (config.run.stop.max_epochs, config.seeds) == (11, (2, 1))  # command line
    assert (config.run.optim.scaling_warmup_epochs, config.devices) == (4, (1, 3))  # sweep file
    assert (config.run.optim.batch_size, config.run.settings.data.samples) == (8, 100)  # base file
    assert (config.run.optim.learning_rate, config.scaling) == (
        DEFAULT.optim.learning_rate,
        SweepConfig().scaling,
    )  # defaults


def test_a_base_may_be_named_and_may_be_missing(toml):
    assert read_sweep(toml('base = "quickstart"')).run == read_config(CONFIGS / "quickstart.toml")
    assert read_sweep(toml("")) == SweepConfig()


@pytest.fixture
def own_workload(tmp_path, monkeypatch):
    """A file with the nodules and a strategy of its own."""
    monkeypatch.setitem(strategies.STRATEGIES, "own-root", strategies.STRATEGIES["sqrt"])  # taken away again afterwards
    path = tmp_path / "mine.py"
    path.write_text("from gmmae.scaling.strategies import STRATEGIES, ScalingStrategy, batch_a_device\n"
                    "from gmmae.workloads.nodules import Config, build\n"
                    "STRATEGIES['own-root'] = ScalingStrategy('Own', batch_a_device, lambda k: k ** 0.25)\n")  # fmt: skip
    return path


def test_a_sweep_may_have_a_workload_in_place_of_its_bases_with_arms_of_its_own(toml, own_workload, monkeypatch):
    monkeypatch.chdir(own_workload.parent)
    path = toml('base = "quickstart"\nscaling = ["own-root"]\n[run]\nworkload = "mine.py"')
    config = read_sweep(path)
    assert config.run.workload == str(own_workload)  # not relative: cells may begin in another folder
    assert config.scaling == ("own-root",)
    assert config.run.optim == read_config(CONFIGS / "quickstart.toml").optim
    assert sweep("--config", str(path)).config == config


def test_values_of_every_kind_are_read_for_a_sweep(toml):
    lines = [
        'mode = "throughput"',
        'scaling = ["sqrt", "weak"]',
        "grace_s = 2",
        "[timing]",
        "steps = 3",
        "device_batches = [1, 5]",
    ]
    config = read_sweep(toml("\n".join([*lines, "[run.model]", "filters = [4]", "kernels = [3]"])))
    assert (config.mode, config.scaling, config.grace_s) == ("throughput", ("sqrt", "weak"), 2.0)
    assert (config.timing.steps, config.timing.device_batches, config.run.settings.model.filters) == (3, (1, 5), (4,))


def test_switches_of_a_run_are_switches_in_a_sweep_too(toml):
    path = toml("keep_checkpoints = true\n[run.log]\ntensorboard = false")
    asked = sweep("--config", str(path), "--run.data.augment", "--no-keep-checkpoints", "--workdir", "here")
    assert (asked.config.run.log.tensorboard, asked.config.run.settings.data.augment) == (False, True)
    assert not asked.config.keep_checkpoints
    assert asked.workdir == Path("here")


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("sweep*.toml")), ids=lambda path: path.stem)
def test_every_sweep_in_configs_is_read_by_path_and_by_name(path):
    assert sweep("--config", path.stem) == (read_sweep(path), Path("runs") / path.stem, False, False, False)
    assert sweep("--config", str(path)).config == read_sweep(path)


def test_an_error_in_the_base_names_the_base(toml, tmp_path):
    (tmp_path / "base.toml").write_text("sed = 1")
    path = toml(f"base = '{tmp_path / 'base.toml'}'")
    assert one_line(read_sweep, path) == f"{path}: base: {tmp_path / 'base.toml'}: unknown key 'sed'; did you mean 'seed'?"
    assert "'nowhere'" in one_line(read_sweep, toml('base = "nowhere"'))


def test_a_report_takes_a_folder_and_clusters():
    assert (report("here").root, report("here").clusters) == (Path("here"), ())
    assert report("here", "--clusters", "pcie", "mine.toml").clusters == ("pcie", "mine.toml")
    assert (report("here").plan, report("here", "--plan", "plan.json").plan) == (None, Path("plan.json"))


def test_a_cluster_is_a_file_or_named_in_configs():
    assert find("pcie", "clusters").samefile(CONFIGS / "clusters" / "pcie.toml")
    with pytest.raises(InputError, match=r"^--clusters must be a TOML file or one of ethernet_100g, .*pcie; got 'k81'$"):
        find("k81", "clusters")
