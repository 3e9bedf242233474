"""`gmmae plan --curves` as a user meets it: curves of any program, the answer, the page, one line for bad input."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
from tensorboardX import SummaryWriter

from gmmae.planner import curves_page
from gmmae.plotting.document import Paragraph
from gmmae.training.records import Epoch, write_history
from tests.commands import refusal, run_gmmae
from tests.planner.test_curves import curve

LOSSES = {batch: curve(batch) for batch in (8, 32, 128)}


def write_csv(path, batch, names=("step", "loss", "batch"), metric=lambda loss: loss, delimiter=",", extra=()):
    rows = zip(LOSSES[batch].steps, LOSSES[batch].values, strict=True)
    cells = [names, *((step, metric(loss), batch, *extra)[: len(names)] for step, loss in rows)]
    path.write_text("".join(delimiter.join(map(str, row)) + "\n" for row in cells))
    return path


@pytest.fixture
def csvs(tmp_path):
    return [write_csv(tmp_path / f"b{batch}.csv", batch) for batch in (8, 32, 128)]


def without_pictures():
    """Leaves out the page's pictures, which take most of its time."""
    picture: Any = lambda *_: Paragraph("picture")  # noqa: E731
    return mock.patch.multiple(curves_page, _law_figure=picture, _curves_figure=picture)


def plan(capsys, workdir, *words, pictures=False):
    with nullcontext() if pictures else without_pictures():
        code = run_gmmae("plan", "--curves", *words, "--workdir", workdir)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, json.loads((workdir / "plan_curves.json").read_text())


def test_curves_give_the_law_and_say_what_they_cannot(csvs, tmp_path, capsys):
    out, found = plan(capsys, tmp_path / "plan", *csvs, "--target", 0.25, pictures=True)
    assert list(found) == list(curves_page.KEYS)
    assert found["least_squares"] == pytest.approx({"smin": 100.0, "bn": 20.0}, rel=0.01)
    assert found["bn"]["low"] < found["bn"]["median"] < found["bn"]["high"]
    assert found["steps"] == pytest.approx({"8": 350.0, "32": 162.5, "128": 115.625}, rel=0.001)
    assert out.startswith("To loss 0.25: at least Smin = 10")
    assert "B / Bn = 0.4" in out
    assert "The linear and the square-root rule" in out
    assert "Set --samples" in out
    assert "Set --step-times" in out
    assert "best-batch" not in out
    page = (tmp_path / "plan" / "plan_curves.html").read_text()
    assert page.count("<img ") == 2
    assert "What the curves cannot say" in page
    assert (tmp_path / "plan" / "plan_curves.md").read_text().startswith("# Plan from curves\n\n**To loss 0.25: ")


def test_step_times_and_a_cluster_give_times_and_a_choice(csvs, tmp_path, capsys):
    machine = ("--step-times", "8=0.02", "128=0.14", "--clusters", "h200_nvlink", "k80_1gbe", "--parameters", 10**6)
    out, found = plan(capsys, tmp_path / "plan", *csvs, *machine, "--samples", 1000, "--devices", 1, 4)
    assert out.startswith("On ")
    assert set(found["machines"]) == {"H200, NVLink, 400 Gb/s", "K80, 1 GbE"}
    fast, slow = found["machines"].values()
    assert fast["overheads"]["4"] < slow["overheads"]["4"]
    assert {cell["scaling"] for cell in fast["cells"]} == {"strong", "weak", "best-batch"}
    assert fast["best"]["expected_s"] <= 1.1 * min(cell["expected_s"] for cell in fast["cells"])
    assert "Set --samples" not in out
    assert "Set --step-times" not in out


def test_step_times_alone_are_a_best_case(csvs, tmp_path, capsys):
    out, _ = plan(capsys, tmp_path / "plan", *csvs, "--step-times", "8=0.02", "128=0.14")
    assert "A device with fewer than 8 samples is taken to need the time of 8." in out
    assert "Without --clusters the all-reduce takes no time" in out


def test_a_cluster_alone_gives_the_all_reduce_and_no_times(csvs, tmp_path, capsys):
    out, found = plan(capsys, tmp_path / "plan", *csvs, "--clusters", "k80_1gbe", "--parameters", 10**6)
    (machine,) = found["machines"].values()
    assert machine["best"] is None
    assert machine["all_reduce_s"]["2"] > 0
    assert "growing wins for certain if" in out


def test_the_precision_decides_the_bytes_of_the_all_reduce(csvs, tmp_path, capsys):
    def reduce_s(precision):
        options = ("--clusters", "k80_1gbe", "--parameters", 10**9, "--precision", precision)
        (machine,) = plan(capsys, tmp_path / precision, *csvs, *options)[1]["machines"].values()
        return machine["all_reduce_s"]["2"]

    assert reduce_s("float32") == pytest.approx(2 * reduce_s("bfloat16"), rel=0.01)


def test_columns_of_other_names_and_a_delimiter(tmp_path, capsys, csvs):
    names = ("global_step", "val/loss", "bs")
    others = [write_csv(tmp_path / f"o{batch}.csv", batch, names, delimiter=";") for batch in (8, 32, 128)]
    options = ("--step-column", "global_step", "--loss-column", "val/loss", "--batch-column", "bs")
    assert plan(capsys, tmp_path / "a", *others, *options)[1]["smin"] == plan(capsys, tmp_path / "b", *csvs)[1]["smin"]


def test_batches_beside_files_without_that_column(tmp_path, capsys, csvs):
    bare = [write_csv(tmp_path / f"bare{batch}.csv", batch, ("step", "loss")) for batch in (8, 32, 128)]
    found = plan(capsys, tmp_path / "a", *bare, "--batches", 8, 32, 128)[1]
    assert found["smin"] == plan(capsys, tmp_path / "b", *csvs)[1]["smin"]


def test_rows_without_a_validation_are_passed_over(tmp_path, capsys, csvs):
    lines = csvs[0].read_text().splitlines()
    csvs[0].write_text("\n".join([lines[0], *(f"{line}\n{float(line.split(',')[0]) + 0.1},,8" for line in lines[1:])]) + "\n")
    assert plan(capsys, tmp_path / "a", *csvs, "--target", 0.25)[1]["steps"]["8"] == pytest.approx(350, rel=0.001)


def test_a_maximised_metric(tmp_path, capsys):
    files = [write_csv(tmp_path / f"b{b}.csv", b, ("step", "accuracy", "batch"), lambda loss: 1 - loss / 4) for b in (8, 32)]
    options = ("--loss-column", "accuracy", "--mode", "max", "--target", 0.9375)
    out, found = plan(capsys, tmp_path / "plan", *files, *options)
    assert found["steps"] == pytest.approx({"8": 350.0, "32": 162.5}, rel=0.01)
    assert "a third batch would test it" in out


def event_folder(root, batch):
    with SummaryWriter(str(root / f"tb{batch}")) as writer:
        writer.add_scalar("batch", batch, 0)
        for step, loss in zip(LOSSES[batch].steps, LOSSES[batch].values, strict=True):
            writer.add_scalar("val/loss", loss, round(step * 100))
            writer.add_scalar("train/loss", loss, round(step * 100))
    return root / f"tb{batch}"


def test_event_folders_of_tensorboard(tmp_path, capsys):
    folders = [event_folder(tmp_path, batch) for batch in (8, 32)]
    options = ("--loss-column", "val/loss", "--target", 0.25)
    found = plan(capsys, tmp_path / "plan", *folders, *options, "--batches", 8, 32)[1]
    assert found["steps"] == pytest.approx({"8": 35_000, "32": 16_250}, rel=0.001)
    assert plan(capsys, tmp_path / "plan", *folders, *options, "--batch-column", "batch")[1]["steps"] == found["steps"]


def test_a_resumed_run_s_later_events_replace_the_earlier_ones(tmp_path, capsys):
    folders = [event_folder(tmp_path, batch) for batch in (8, 32)]
    with SummaryWriter(str(folders[0]), filename_suffix=".resumed") as writer:
        writer.add_scalar("val/loss", 1.5, 10_000)
        writer.add_scalar("val/loss", 0.1, 20_000)
    # A file's name begins with its second of writing, so the order of the two is made certain.
    first, second = sorted(folders[0].iterdir(), key=lambda path: path.name.endswith(".resumed"))
    second.rename(second.with_name(f"{first.name}.resumed"))
    found = plan(capsys, tmp_path / "p", *folders, "--loss-column", "val/loss", "--target", 0.25, "--batches", 8, 32)[1]
    assert 10_000 < found["steps"]["8"] < 20_000


def test_work_directories_of_gmmae(tmp_path, capsys):
    for batch in (8, 32):
        rows = [
            Epoch(i, round(100 * step), 0, 0.001, loss, loss, 0, 0, 0, 0, 0, batch, {"accuracy": 1 - loss})
            for i, (step, loss) in enumerate(zip(LOSSES[batch].steps, LOSSES[batch].values, strict=True), start=1)
        ]
        (tmp_path / f"run{batch}").mkdir()
        write_history(tmp_path / f"run{batch}" / "history.csv", rows, ("accuracy",))
    runs = [tmp_path / "run8", tmp_path / "run32"]
    out, found = plan(capsys, tmp_path / "plan", *runs, "--target", 0.25)
    assert found["steps"] == pytest.approx({"8": 35_000, "32": 16_250}, rel=0.001)
    assert "All curves have the learning rate 0.001" in out
    other = plan(capsys, tmp_path / "plan", *runs, "--loss-column", "accuracy", "--mode", "max", "--target", 0.75)[1]
    assert other["steps"] == pytest.approx(found["steps"])


def test_a_second_call_with_other_options_replaces_the_first(csvs, tmp_path, capsys):
    first = plan(capsys, tmp_path / "plan", *csvs, "--target", 0.25)[1]
    harder = plan(capsys, tmp_path / "plan", *csvs, "--target", 0.2, "--devices", 1, 2)[1]
    fresh = plan(capsys, tmp_path / "fresh", *csvs, "--target", 0.2, "--devices", 1, 2)[1]
    assert harder == fresh
    assert harder["smin"]["median"] > first["smin"]["median"]


def test_other_units_of_time_change_times_and_nothing_else(csvs, tmp_path, capsys):
    (a,) = plan(capsys, tmp_path / "a", *csvs, "--step-times", "8=0.02", "128=0.14")[1]["machines"].values()
    (b,) = plan(capsys, tmp_path / "b", *csvs, "--step-times", "8=20", "128=140")[1]["machines"].values()
    assert [cell["batch"] for cell in a["cells"]] == [cell["batch"] for cell in b["cells"]]
    assert [1000 * cell["expected_s"] for cell in a["cells"]] == pytest.approx([cell["expected_s"] for cell in b["cells"]])
    assert a["growing_wins"] == b["growing_wins"]


def test_few_validations_are_warned_of(tmp_path, capsys):
    files = [write_csv(tmp_path / f"b{batch}.csv", batch) for batch in (8, 32)]
    for file in files:
        head, *rows = file.read_text().splitlines()
        file.write_text("\n".join([head, *rows[9::10]]) + "\n")
    out, _ = plan(capsys, tmp_path / "plan", *files, "--target", 0.3)
    assert "warning: each curve should have 5 validations or more before the target; got " in out


def test_steps_against_the_law_are_warned_of(tmp_path, capsys, csvs):
    found = plan(capsys, tmp_path / "plan", *csvs, "--batches", 128, 32, 8)[1]
    assert any("do not trust" in warning for warning in found["warnings"])


@pytest.mark.parametrize(("given", "other", "better"), [("min", "max", "higher"), ("max", "min", "lower")])
def test_curves_that_move_away_from_the_target_tell_of_the_mode(given, other, better, tmp_path, capsys):
    files = [tmp_path / "b8.csv", tmp_path / "b32.csv"]
    for file, batch in zip(files, (8, 32), strict=True):
        values = range(10, 90, 5) if given == "min" else range(90, 10, -5)
        file.write_text("step,loss,batch\n" + "".join(f"{i + 1},{value},{batch}\n" for i, value in enumerate(values)))
    line = refusal(capsys, "plan", "--curves", *files, "--mode", given, "--workdir", tmp_path / "plan")
    assert f"or set --mode {other} where {better} values are better" in line


BAD_OPTIONS = [
    (("--target", "0.001"), "--target must be reached by every curve; got 0.001"),
    (("--target", "1.99"), "--target must be reached after the first validation of each curve; got 1.99"),
    (("--target", "nan"), "--target must be a number, or none; got nan"),
    (("--loss-column", "val"), "must have a column 'val'; it has 'step', 'loss', 'batch': set --loss-column"),
    (
        ("--batch-column", "bs"),
        "must have a column 'bs'; it has 'step', 'loss', 'batch': set --batch-column, or give --batches",
    ),
    (("--step-column", "Epoch"), "--step-column must count steps of the optimiser, which the law needs; got 'Epoch'"),
    (("--batches", "8", "32"), "--batches must be one for each of the 3 curves, in their order; got 2"),
    (("--batches", "8", "8", "8"), "--curves must be of two batches or more; got 3 of batch 8"),
    (("--smooth", "2"), "--smooth must be a whole number, an odd number of 1 to 10001; got 2"),
    (("--step-times", "32"), "--step-times must be batches with positive seconds, such as 32=0.0021 128=0.0060; got '32'"),
    (("--step-times", "32=1", "8=nan"), "--step-times must be batches with positive seconds"),
    (("--step-times", "32=0.006", "128=0.002"), "--step-times must not fall with the batch; got 32=0.006 128=0.002"),
    (("--step-times", "32=1"), "--step-times must be of two batches or more"),
    (("--step-times", "32=1", "32=2"), "--step-times must be of different batches; got 32 twice"),
    (("--clusters", "k80_1gbe"), "--parameters must be given with --clusters"),
    (("--clusters", "k80_1gbe", "k80_1gbe", "--parameters", "1"), "--clusters must be of different names"),
    (("--clusters", "nowhere", "--parameters", "1"), "--clusters must be a TOML file or one of"),
    (("--samples", "100"), "--samples must be at least the curves' largest batch, 128; got 100"),
    (("--samples", "1000", "--devices", "2000"), "--devices must be at most the 1000 samples; got 2000"),
]


@pytest.mark.parametrize(
    ("options", "line"), BAD_OPTIONS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_a_bad_option_is_one_line(options, line, csvs, tmp_path, capsys):
    assert line in refusal(capsys, "plan", "--curves", *csvs, "--workdir", tmp_path / "plan", *options)
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda file: file.unlink(), "a curve must be a CSV file, an event folder or a work directory; got"),
        (
            lambda file: file.write_bytes(b"\xff\xfe\x00"),
            "a curve must be a CSV file, an event folder or a work directory; got",
        ),
        (lambda file: file.write_text("step,loss,batch\n"), "must have a header and a row for each validation; got 1 line"),
        (lambda file: file.write_text(""), "must have a header and a row for each validation; got 0 lines"),
        (
            lambda file: file.write_text("# of today\nstep,loss,batch\n1,2,8\n"),
            "must have a column 'step'; it has '# of today': set --step-column, or remove the lines above the header",
        ),
        (
            lambda file: file.write_text("step,loss,loss,batch\n1,2,3,8\n"),
            "must have one column 'loss'; it has 2: rename one, or set --loss-column",
        ),
        (lambda file: file.write_text("step,loss,batch\n1,2,8\n", encoding="utf-16"), "save it as UTF-8"),
        (
            lambda file: file.write_text("step;loss;batch\n1;1,5;8\n"),
            "line 2: loss must be a number; got '1,5': write decimals with a point, and no unit",
        ),
        (lambda file: file.write_text("step,loss,batch\n1,7%,8\n"), "got '7%': write decimals with a point, and no unit"),
        (
            lambda file: file.write_text("step,loss,batch\n1,2,8\n2,nan,8\n3,1,8\n"),
            "must be finite; got nan: remove the rows without a finite number",
        ),
        (lambda file: file.write_text("step,loss,batch\n1,,8\n"), "must have a loss in one row at least"),
        (lambda file: file.write_text("step,loss,batch\n1,2,8\n2,x,8\n"), "line 3: loss must be a number; got 'x'"),
        (
            lambda file: file.write_text("step,loss,batch\n1,2,8\n,1,8\n"),
            "line 3: step must be a number; got '': fill it in, or remove the row",
        ),
        (
            lambda file: file.write_text("step,loss,batch\n1,2,8\n2,nan,8\n"),
            "must be finite; got nan: remove the rows from there on",
        ),
        (lambda file: file.write_text("step,loss,batch\n2,2,8\n1,1,8\n"), "must increase; got 1 after 2"),
        (lambda file: file.write_text("step,loss,batch\n-2,2,8\n1,1,8\n"), "must be at least 0; got -2"),
        (lambda file: file.write_text("step,loss,batch\n1,2,8\n2,1,9\n"), "a curve must have one batch; got 8, 9 in"),
        (lambda file: file.write_text("step,loss,batch\n1,2,8.5\n2,1,8.5\n"), "must be a whole number of at least 1; got 8.5"),
    ],
)
def test_a_bad_file_is_one_line(change, line, csvs, tmp_path, capsys):
    change(csvs[0])
    assert line in refusal(capsys, "plan", "--curves", *csvs, "--workdir", tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_curves_are_one_line(count, csvs, capsys):
    assert f"--curves must be two or more, at different batches; got {count}" in refusal(
        capsys, "plan", "--curves", *csvs[:count]
    )


def test_one_file_is_no_second_seed_of_itself(csvs, capsys):
    assert "--curves must be different files; got" in refusal(capsys, "plan", "--curves", csvs[0], csvs[0], csvs[1])


def test_curves_of_two_learning_rates_are_refused(tmp_path, capsys):
    names = ("step", "loss", "batch", "rate")
    files = [write_csv(tmp_path / f"b{b}.csv", b, names, extra=(rate,)) for b, rate in ((8, 0.001), (32, 0.004))]
    line = refusal(capsys, "plan", "--curves", *files, "--learning-rate-column", "rate")
    assert "curves must have one learning rate, because it changes the steps; got 0.001 in" in line


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda folder: [path.unlink() for path in folder.iterdir()], "must hold TensorBoard's event files (*tfevents*)"),
        (lambda folder: next(folder.iterdir()).write_bytes(b"no event" * 9), "must be a readable event file of TensorBoard"),
    ],
)
def test_a_bad_event_folder_is_one_line(change, line, tmp_path, capsys):
    folders = [event_folder(tmp_path, batch) for batch in (8, 32)]
    change(folders[1])
    assert line in refusal(capsys, "plan", "--curves", *folders, "--loss-column", "val/loss", "--batches", 8, 32)


def test_a_missing_scalar_lists_those_that_are_there(tmp_path, capsys):
    folders = [event_folder(tmp_path, batch) for batch in (8, 32)]
    line = refusal(capsys, "plan", "--curves", *folders, "--batches", 8, 32)
    assert "must hold the scalar 'loss'; it has batch, train/loss, val/loss" in line
    assert "the batch of " in refusal(capsys, "plan", "--curves", *folders, "--loss-column", "val/loss")


def test_a_run_killed_while_it_wrote_an_event_is_read_up_to_there(tmp_path, capsys):
    folders = [event_folder(tmp_path, batch) for batch in (8, 32)]
    file = next(folders[0].iterdir())
    file.write_bytes(file.read_bytes()[:-20])
    plan(capsys, tmp_path / "plan", *folders, "--loss-column", "val/loss", "--target", 0.25, "--batches", 8, 32)


def test_a_command_of_a_notebook_with_its_own_backend_needs_no_jax(csvs, tmp_path):
    words = ["gmmae", "plan", "--curves", *map(str, csvs), "--workdir", str(tmp_path / "plan")]
    lines = [f"import sys; sys.argv = {words!r}", "from gmmae.cli import main", "assert main.main() == 0"]
    program = "\n".join([*lines, "assert 'jax' not in sys.modules"])
    environment = os.environ | {"MPLBACKEND": "module://a_notebook.backend"}
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment)


def test_the_help_of_plan_names_the_option(capsys):
    with pytest.raises(SystemExit):
        run_gmmae("plan", "--help")
    assert "`gmmae plan --curves --help`" in " ".join(capsys.readouterr().out.split())
