"""The command line as a user meets it: exit codes, one-line errors, where things are."""

import json
import re
import shutil
from pathlib import Path

import jax
import pytest

from gmmae.cli import main, options
from gmmae.config.toml import to_toml
from gmmae.sweep import engine
from gmmae.sweep.report import page
from gmmae.system import guard
from tests.cli.test_refusals import SWEEP
from tests.commands import lines_of, refusal, run_gmmae
from tests.launched import python
from tests.small import small
from tests.workloads.test_guide import EXAMPLE


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(to_toml(small(stop__max_epochs=2)))
    return path


def train(*arguments: object):
    return run_gmmae("train", *arguments)


def test_train_says_where_everything_is(tmp_path, config_file, capsys):
    workdir = tmp_path / "run"
    assert train("--config", config_file, "--workdir", workdir) == 0
    printed = capsys.readouterr().out
    for name in ("figures/reconstructions.png", "figures/losses.png", "record.json", "history.csv", "checkpoints"):
        assert str(workdir / name) in printed
        assert (workdir / name).exists()
    for words in ("max_epochs after 2 epochs", "for scale: the loss 0.0", "global batch     8 = 1 × 8 a device, no padding"):
        assert words in printed


def test_a_finished_run_tells_of_a_history_that_cannot_be_read(tmp_path, config_file, capsys):
    words = ("--config", config_file, "--workdir", tmp_path / "run")
    assert train(*words) == 0
    history = tmp_path / "run" / "history.csv"
    text = history.read_text()
    history.write_text(text.replace("val_loss", "validation"))
    assert "history.csv must begin with the 2 rows" in refusal(capsys, "train", *words)
    history.write_text(text)
    assert train(*words) == 0
    history.unlink()
    assert train(*words) == 0


def test_a_file_of_a_workload_may_move_and_another_one_is_refused(own_run, tmp_path, capsys):
    run, mine = shutil.copytree(own_run.folder, tmp_path / "run"), tmp_path / "renamed.py"
    words = ("--workload", mine, "--images", 96, "--parallel.devices", 1, "--log.no-tensorboard", "--workdir", run)
    mine.write_text(EXAMPLE + "# changed")
    assert "where workload was" in refusal(capsys, "train", *words, "--stop.max-epochs", 1)
    mine.write_text(EXAMPLE)
    assert train(*words, "--stop.max-epochs", 2) == 0
    assert "renamed.py" in (run / "config.toml").read_text()


def test_failed_optimisation_is_exit_code_3_with_a_whole_record(tmp_path, config_file):
    run = tmp_path / "run"
    assert train("--config", config_file, "--workdir", run, "--optim.learning-rate", "1e30") == 3
    record = json.loads((run / "record.json").read_text())
    assert (record["stop_reason"], record["time_to_target_s"]) == ("diverged", None)
    assert len((run / "history.csv").read_text().splitlines()) == record["epochs"] + 1
    assert (run / "figures" / "losses.png").is_file()


@pytest.fixture
def sweep_file(tmp_path):
    """28 volumes, 22 of them for training, and a base batch of 8."""
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(SWEEP))
    return path


def helped(capsys, *words: str):
    """The help of a command, without the frames that tyro draws."""
    with pytest.raises(SystemExit) as ended:
        main.dispatch([*words, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out.replace("│", " ")


def test_where_a_run_or_a_sweep_is_taken_it_is_said_that_it_must_be_trusted(capsys, monkeypatch):
    """A run's configuration may name a file of Python, which is executed."""
    monkeypatch.setenv("COLUMNS", "100")
    texts = {name: helped(capsys, *name.split()) for name in main.COMMANDS}
    taking = {name for name, text in texts.items() if re.search(r"\bRUN\b", text.partition("\n\n")[0])} | {"report"}
    assert taking >= {"describe", "evaluate", "export", "generate"}
    for name in taking:
        text = " ".join(texts[name].split())
        assert re.search(r" (RUN|FOLDER) (a|the work directory of a) (run|sweep) that you trust.{,30} is executed", text), name


def test_a_dry_run_prints_the_grid_and_leaves_nothing(tmp_path, sweep_file, capsys, monkeypatch):
    """Strong scaling takes 8 = 3 × 3 - 1 of the 22 volumes in 3 steps. Weak scaling asks for 24 and gets 22 = 3 × 8 - 2."""
    monkeypatch.chdir(tmp_path)
    rows = lines_of(capsys, "sweep", "--config", sweep_file, "--dry-run")
    assert [" ".join(row.split()) for row in rows] == [
        "run batch a device padded learning rate steps/epoch same path as",
        "strong-n1-seed0 8 8 0 0.00105 3",
        "weak-n1-seed0 8 8 0 0.00105 3 strong-n1-seed0",
        "strong-n3-seed0 8 3 1 0.00105 3 strong-n1-seed0",
        "weak-n3-seed0 22 (capped from 24) 8 2 0.00105 1",
    ]
    assert not (tmp_path / "runs").exists()


def test_a_sweep_of_a_workload_needs_no_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(EXAMPLE)
    words = ("sweep", "--run.workload", "mine.py", "--dry-run")
    assert "strong" in "\n".join(lines_of(capsys, *words, "--run.noise", 0.8, "--devices", 1, 2))
    assert "base: " in refusal(capsys, *words, "--config", "sweep_quick")


def test_python_without_the_packages_is_told_in_one_line():
    code = "import runpy, sys; sys.modules['tyro'] = None; runpy.run_path('train.py', run_name='__main__')"
    found = python("-c", code)
    [line] = found.stderr.splitlines()
    assert found.returncode == 2
    assert "lacks tyro: activate gmmae's environment" in line


@pytest.mark.parametrize(("code", "reported"), [(0, True), (4, True), (143, False), (130, False)])
def test_a_sweep_is_followed_by_its_report_unless_it_was_interrupted(tmp_path, sweep_file, monkeypatch, capsys, code, reported):
    ran, written, here = [], [], tmp_path / "here"
    monkeypatch.setattr(engine, "sweep", lambda *given, **options: ran.append((given, options)) or code)
    monkeypatch.setattr(page, "write", lambda *parts: written.append(parts) or [here / "report.md"])
    clusters = ("--clusters", "pcie", "k80_1gbe")
    assert run_gmmae("sweep", "--config", sweep_file, "--workdir", here, "--retry", *clusters) == code
    [((config, root, _), options)] = ran
    assert (config.devices, root, options.pop("data").samples) == ((1, 3), here, 22)
    assert options == {"samples": 22, "retry": True, "reference_batches": {32}}
    assert [(each, place, len(found)) for each, place, found in written] == [(config, root, 2)] * reported
    assert (str(here / "report.md") in capsys.readouterr().out.replace("\n", "")) == reported


def test_a_report_is_of_the_sweep_in_the_folder(tmp_path, sweep_file, monkeypatch, capsys):
    """The saved clusters unless others are given, and a plan where one is."""
    written = []
    sweep_file.rename(tmp_path / "sweep.toml")
    monkeypatch.setattr(page, "write", lambda *parts: written.append(parts) or [tmp_path / "report.md"])
    for words in ((), ("--clusters", "pcie", "h200_nvlink", "--plan", "a.json")):
        assert lines_of(capsys, "report", tmp_path, *words) == [str(tmp_path / "report.md")]
    found = [(config.devices, place, len(clusters), plan) for config, place, clusters, plan in written]
    assert found == [((1, 3), tmp_path, 1, None), ((1, 3), tmp_path, 2, Path("a.json"))]


@pytest.mark.parametrize("name", main.COMMANDS)
def test_ctrl_c_ends_in_one_line_with_the_state_of_the_output(name, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(options.PARSERS, name, interrupted)
    assert run_gmmae(*name.split()) == 130
    expected = "goes on where it was" if name in ("train", "sweep", "plan", "data prepare") else "begins again"
    assert re.fullmatch(f"interrupted; .*{expected}\n", capsys.readouterr().err)


def test_too_little_memory_is_one_line_and_other_faults_of_the_program_keep_their_traceback(capsys):
    def failing(error):
        raise error

    assert guard.guarded(failing, MemoryError("Unable to allocate 7.28 TiB for an array")) == 2
    assert capsys.readouterr().err.startswith("error: memory must hold what is asked for; got Unable to allocate 7.28 TiB")
    found = "RESOURCE_EXHAUSTED: [0] Failed to load in-memory CUBIN.:\nCUDA_ERROR_OUT_OF_MEMORY: out of memory"
    assert guard.guarded(failing, jax.errors.JaxRuntimeError(f"INTERNAL: {found}")) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert " ".join(found.split()) in line
    assert "--parallel.micro-batch-size" in line
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        guard.guarded(failing, jax.errors.JaxRuntimeError("INTERNAL: something else"))


@pytest.mark.parametrize("words", [[], ["--help"], ["data"], ["data", "-h"], ["--version"]], ids=" ".join)
def test_the_command_alone_shows_its_help_and_its_version(monkeypatch, capsys, words):
    monkeypatch.setattr("sys.argv", ["gmmae", *words])
    assert main.main() == 0
    lines = capsys.readouterr().out.splitlines()
    if words == ["--version"]:
        assert lines == ["gmmae 0.1.0"]
    else:
        listed = [line[2:].partition("  ")[0].strip() for line in lines if line.startswith("  ")]
        assert listed == [*main.COMMANDS]
        assert max(map(len, lines)) <= 80
