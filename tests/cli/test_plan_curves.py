"""`gmmae plan --curves` as a user meets it: curves of any program, the answer, the page, one line for bad input."""

import json
import math
import os
from unittest import mock

import pytest
from tensorboardX import SummaryWriter

from docs import generate
from gmmae.plotting import canvas, comparison
from gmmae.training import fingerprint
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.records import Epoch
from gmmae.training.run_logger import write_history
from tests.commands import refusal, run_gmmae
from tests.launched import python
from tests.planner.test_curves import curve, steps_at

LOSSES = {batch: curve(batch) for batch in (8, 32, 128)}
TARGET = ("--target", 0.25)
LAW = {str(batch): steps_at(batch) for batch in (8, 32)}
HUNDREDFOLD = {batch: 100 * steps for batch, steps in LAW.items()}
"""The steps of logs, whose curves have validations far apart."""
CLUSTERS = ("--clusters", "h200_nvlink", "k80_1gbe", "--parameters", 10**6)
TIMES = ("--step-times", "8=0.02", "128=0.14")


def write_csv(path, batch, names=("step", "loss", "batch"), delimiter=","):
    rows = zip(LOSSES[batch].steps, LOSSES[batch].values, strict=True)
    cells = [names, *((step, loss, batch)[: len(names)] for step, loss in rows)]
    path.write_text("".join(delimiter.join(map(str, row)) + "\n" for row in cells))
    return path


@pytest.fixture
def csvs(tmp_path):
    return [write_csv(tmp_path / f"b{batch}.csv", batch) for batch in (8, 32, 128)]


@pytest.fixture
def plan(tmp_path, capsys):
    """The command with one small picture, because pictures take most of its time: what it prints, and its JSON."""

    def call(*words):
        place = tmp_path / "plan"
        with mock.patch.object(comparison, "time_to_target", return_value=canvas.blank(1.0, "")):
            code = run_gmmae("plan", "--curves", *words, "--workdir", place)
        out, err = capsys.readouterr()
        assert code == 0, err
        return out, json.loads((place / "plan_curves.json").read_text())

    return call


def refused(capsys, *words):
    return refusal(capsys, "plan", "--curves", *words)


def test_curves_give_the_steps_and_say_what_they_cannot(csvs, tmp_path, capsys):
    assert run_gmmae("plan", "--curves", *csvs, *TARGET, "--workdir", tmp_path / "plan") == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "plan" / "plan_curves.json").read_text())
    assert set(found) == {"clusters", "rule", "target", "metric", "measured", *generate.CURVES_KEYS}
    assert found["measured"]["steps"] == pytest.approx({**LAW, "128": steps_at(128)}, rel=0.001)
    assert out.startswith("Keep 8 or grow? On 8 devices growing to 64 (weak scaling) takes ")
    assert " % of the steps (" in out
    for words in ("the linear and the square-root rule", "Set --samples", "Set --step-times"):
        assert words in out
    assert "best-batch" not in out
    (of,) = found["clusters"].values()
    assert of["best"] is None
    assert {cell["seconds"] for cell in of["cells"]} == {None}
    page = (tmp_path / "plan" / "plan_curves.html").read_text()
    assert "<img " not in page
    assert (tmp_path / "plan" / "plan_curves.md").read_text().startswith("# Plan from curves\n\n- **Keep 8 or grow? ")


def test_step_times_and_a_cluster_give_times_and_a_choice(csvs, plan):
    out, found = plan(*csvs, *TIMES, *CLUSTERS, "--samples", 1000, "--devices", 1, 4)
    assert " % of the time (" in out
    assert set(found["clusters"]) == {"H200, NVLink, 400 Gb/s", "K80, 1 GbE"}
    fast, slow = found["clusters"].values()
    assert fast["best"]["seconds"] < slow["best"]["seconds"]
    assert fast["cells"][0] == slow["cells"][0]  # one device: a cluster's reference step is that of another model
    assert {cell["scaling"] for cell in fast["cells"]} == {"strong", "weak", "best-batch"}
    assert fast["best"]["expected_s"] <= 1.1 * min(cell["expected_s"] for cell in fast["cells"])
    assert "Set --samples" not in out
    assert "Set --step-times" not in out
    half = plan(*csvs, *TIMES, *CLUSTERS, "--precision", "bfloat16")[1]
    assert found["measured"]["gradient_bytes"] == 2 * half["measured"]["gradient_bytes"] == 4e6
    assert "Set --clusters" in plan(*csvs, *TIMES)[0]


def test_no_batch_below_the_smallest_curve_is_proposed(csvs, plan):
    """Without overhead the law would have ever smaller batches, where the noise may keep a run from the target."""
    times = ("--step-times", "1=0.001", "128=0.128", "--devices", 1, 2, 4)
    found = plan(*csvs[1:], *times)[1]["clusters"].popitem()[1]
    assert min(found["best_batches"]) == found["best"]["batch"] == 32
    out = plan(*csvs[1:], *times, "--batch-size", 4)[0]
    assert "Warning: the batch 4 is below those of the curves" in out


def test_a_price_and_a_power_give_the_cost_of_every_time(csvs, tmp_path, plan):
    file = tmp_path / "mine.toml"
    links = "device = 'A100'\ndevices_per_node = 8\nalpha_intra_s = 1e-6\nbeta_intra_bytes_per_s = 1e11\n"
    file.write_text(f"name = 'Mine'\n{links}price_per_device_hour = 'EUR 1.80'\nwatts_per_device = 400\n")
    cluster = ("--clusters", file, "--parameters", 10**6, "--devices", 1, 8)
    out, found = plan(*csvs, *TIMES, *cluster)
    assert "times the price." in out
    assert "device time  cost (EUR)  energy (Wh)" in out
    for cell in found["clusters"]["Mine"]["cells"]:
        assert cell["device_s"] == pytest.approx(cell["devices"] * cell["seconds"])
        assert (cell["cost_EUR"], cell["energy_Wh"]) == pytest.approx((cell["device_s"] / 2000, cell["device_s"] / 9))


def test_columns_of_other_names_and_rows_without_a_loss(tmp_path, plan):
    names = ("global_step", "val/loss", "bs")
    others = [write_csv(tmp_path / f"o{batch}.csv", batch, names, delimiter=";") for batch in (8, 32)]
    options = ("--step-column", "global_step", "--loss-column", "val/loss", "--batch-column", "bs", *TARGET)
    bare = [write_csv(tmp_path / f"bare{batch}.csv", batch, ("step", "loss")) for batch in (8, 32)]
    bare[0].write_text(bare[0].read_text().replace("\n", "\n0.5,\n", 1))  # a row without a loss, as of a training step
    for words in ((*others, *options), (*bare, *TWO, *TARGET)):
        assert plan(*words)[1]["measured"]["steps"] == pytest.approx(LAW, rel=0.001)


TWO = ("--batches", 8, 32)


def test_event_folders_of_tensorboard(tmp_path, plan):
    folders = [log.parent for log in logs_of(event_file, tmp_path)]

    def steps(*words):
        return plan(*folders, *TARGET, *words)[1]["measured"]["steps"]

    found = steps(*TWO)
    assert found == pytest.approx(HUNDREDFOLD, rel=0.001)
    file = next(folders[0].iterdir())
    file.write_bytes(file.read_bytes()[:-20])  # as of a run that was killed while it wrote
    assert steps("--batch-column", "batch") == found
    # A resumed run's later events replace the earlier ones.
    with SummaryWriter(str(tmp_path / "more")) as writer:
        writer.add_scalar("valid_loss", 1.5, 10_000)
        writer.add_scalar("valid_loss", 0.1, 20_000)
    # A file's name begins with its second of writing, so the order of the two is made certain.
    next((tmp_path / "more").iterdir()).rename(f"{file}.resumed")
    assert 10_000 < steps(*TWO)["8"] < 20_000


def test_work_directories_of_gmmae(tmp_path, plan):
    for batch in (8, 32):
        rows = [
            Epoch(i, round(100 * step), 0, 0.001, loss, loss, 0, 0, 0, 0, 0, batch, metrics={"accuracy": 1 - loss})
            for i, (step, loss) in enumerate(zip(LOSSES[batch].steps, LOSSES[batch].values, strict=True), start=1)
        ]
        run = tmp_path / f"run{batch}"
        run.mkdir()
        write_history(run / "history.csv", rows, ("accuracy",))
        fingerprint.write(Fingerprint([], [], 0, {"train samples": str(batch)}, []), run)
        (run / "config.toml").write_text(f'optim.batch_size = {batch}\noptim.name = "sgd{batch}"\ndata.workers = {batch}')
    runs = [tmp_path / "run8", tmp_path / "run32"]
    out, found = plan(*runs, *TARGET)
    assert "all curves have the learning rate 0.001" in out
    assert 'too: optim.name was "sgd8", now "sgd32"; train samples was "8", now "32"' in " ".join(out.split())
    other = plan(*runs, "--loss-column", "accuracy", "--mode", "max", "--target", 0.75)[1]
    for one in (found, other):  # the second call replaces the first
        assert one["measured"]["steps"] == pytest.approx(HUNDREDFOLD, rel=0.001)


def loss_at(batch, step):
    return 2 * 0.125 ** (step / 100 / steps_at(batch))


def seconds_at(batch, step):
    return step * (0.02 + 0.004 * batch)


def lightning(path, batch, rate=0.01):
    """A row for each `log_metrics`, and the step of a validation is that of the batch before, from 0."""
    ends = ((e, (e + 1) * 999) for e in range(60))
    rows = (f"{e},,{end - 1},{9 - e},,,\n{e},,{end - 1},,,9,{loss_at(batch, end)}\n" for e, end in ends)
    names = "epoch,lr-SGD/pg1,step,train_loss_step,test_loss,val_loss_step,val_loss_epoch\n"
    path.write_text(names + f",{rate},0,,,,\n" + "".join(rows) + "60,,60000,,9,,\n")


def keras(path, batch, rate=0.01):
    """Epochs from 0, sorted metrics, and NA where an epoch has no validation."""
    steps = ((e, (e + 1) * math.ceil(16_001 / batch)) for e in range(120))
    rows = (f"{e},0.5,{9 - e},{rate},{loss_at(batch, step) if e % 2 else 'NA'}\n" for e, step in steps)
    path.write_text("epoch,accuracy,loss,lr,val_loss\n" + "".join(rows))


def nnunet(path, batch, rate=0.01):
    lines = [
        "#" * 9,
        "",
        "This is the configuration used by this training:",
        f" {{'data_identifier': 'x', 'batch_size': {batch}}} ",
    ]
    for e in range(240):
        values = f"train_loss {-e} ", f"val_loss {loss_at(batch, 250 * (e + 1)):.6f} "
        epoch_s = seconds_at(batch, 250) + 100 * (e == 9)
        dice = f"Pseudo dice [np.float32({1 - loss_at(batch, 250 * (e + 1)) / 4:.6f}), 0.9, nan] "
        words = " ", f"Epoch {e} ", f"Current learning rate: {rate} ", *values, dice, f"Epoch time: {epoch_s:.2f} s "
        lines += [f"2025-06-23 16:21:54.157436: {text}" for text in words]
    path.write_text("\n".join(lines))


def hugging_face(path, batch, parts=2, rate=5e-5):
    """`train_batch_size` is of one process; here two gradients are accumulated. Its falling rate is logged late."""
    steps = range(500, 60_001, 500)
    rates = {s: {"learning_rate": rate * (1 - s / (64_000 + 200 * batch))} for s in steps if not s % (500 * batch)}
    history = [
        row for s in steps for row in ({"step": s, "loss": 9} | rates.get(s, {}), {"step": s, "eval_loss": loss_at(batch, s)})
    ]
    runtime = seconds_at(batch, 60_000) + 500
    history[-1]["eval_runtime"] = 500
    end = {"step": 60_000, "train_runtime": runtime, "train_samples_per_second": 60_000 * batch / runtime}
    state = {"train_batch_size": batch // parts, "max_steps": 60_000, "log_history": [*history, end]}
    path.write_text(json.dumps(state, indent=2))


def wandb_history(path, batch):
    """`_step` counts calls of `log`; Lightning and Hugging Face log the steps beside it."""
    rows = (
        f"{i},{i},{seconds_at(batch, 500 * i)},{500 * i},1,{loss_at(batch, 500 * i) if i % 2 else ''}\n" for i in range(120)
    )
    path.write_text(",_step,_runtime,train/global_step,train/loss,eval/loss\n" + "".join(rows))


def wandb_export(path, batch):
    names = "".join(f',"run {batch} - val/loss{end}"' for end in ("", "__MIN", "__MAX"))
    rows = (f"{s}" + f",{loss_at(batch, s)}" * 3 + "\n" for s in range(500, 60_001, 500))
    path.write_text(f'"Step"{names}\n' + "".join(rows))


def event_file(path, batch):
    with SummaryWriter(str(path.with_suffix(""))) as writer:
        writer.add_scalar("batch", batch, 0)
        for step in range(500, 60_001, 500):
            for tag in ("train_loss", "valid_loss"):
                writer.add_scalar(tag, loss_at(batch, step), step, walltime=1.7e9 + seconds_at(batch, step))
    next(path.with_suffix("").iterdir()).rename(path)
    path.with_suffix("").rmdir()


LOGS = {
    lightning: ("metrics.csv", TWO, False),
    keras: ("training.log", (*TWO, "--samples", 16_001), False),
    nnunet: ("training_log_2025_6_23_16_20_48.txt", (), True),
    hugging_face: ("trainer_state.json", (), False),  # two devices, or one that accumulates: the log does not say
    wandb_history: ("wandb.csv", TWO, True),
    wandb_export: ("wandb_export.csv", TWO, False),
    event_file: ("events.out.tfevents.1700000000.host.1.0", TWO, True),
}


def logs_of(write, root, **options):
    """Writes logs of batch 8 and of batch 32 by the program's name for them."""
    logs = [root / batch / LOGS[write][0] for batch in LAW]
    for log in logs:
        log.parent.mkdir(exist_ok=True)
        write(log, int(log.parent.name), **options)
    return logs


@pytest.mark.parametrize("write", LOGS, ids=lambda write: write.__name__)
def test_logs_of_other_programs_are_read_as_they_are(write, tmp_path, plan):
    _, options, timed = LOGS[write]
    logs = logs_of(write, tmp_path)
    (tmp_path / "8" / "hparams.yaml").touch()
    out, found = plan(tmp_path / "8", logs[1], *options, *TARGET)
    assert found["measured"]["steps"] == pytest.approx(HUNDREDFOLD, rel=0.003)
    times = {str(batch): seconds_at(batch, 1) for batch in (8, 32)}
    assert found["measured"]["step_s"] == (pytest.approx(times, rel=1e-3) if timed else None)
    assert ("taken as those of one device" in out) == timed
    n = 4 if write is hugging_face else 8  # its rate falls, so no batch above 32 is proposed
    assert f"Time a step at batch {8 // n} first: that is what each of {n} devices would have" in out


def test_step_times_of_logs_give_way_to_those_of_the_user_and_must_not_fall(tmp_path, capsys, monkeypatch, plan):
    for clock, options, expected in (
        (seconds_at, ("--step-times", "1=0.01", "32=0.02"), {"1": 0.01, "32": 0.02}),
        (seconds_at, ("--step-times", "1=10", "32=20"), {"1": 10, "32": 20}),
        (seconds_at, ("--step-times", "1=0.01"), {"1": 0.01} | {str(batch): seconds_at(batch, 1) for batch in (8, 32)}),
        (lambda batch, step: step / batch, (), None),
    ):
        monkeypatch.setitem(globals(), "seconds_at", clock)
        logs = logs_of(hugging_face, tmp_path, parts=1)
        out, found = plan(*logs, *options)
        assert found["measured"]["step_s"] == (expected and pytest.approx(expected))
        assert ("taken as those of one device" in out) == (options == ("--step-times", "1=0.01"))
        assert ("Time a step at batch 2 first" in out) == (expected is None)
        assert ("must be in seconds" in out) == (options[2:] == ("32=20",))
    hugging_face(logs[1], 32, rate=5e-4)
    assert "must have one learning rate" in refused(capsys, *logs)
    logs[1].write_text(logs[1].read_text().replace("train_samples_per_second", "flos"))  # as before the training's end
    assert "--batches" in refused(capsys, *logs)


@pytest.mark.parametrize("write", [lightning, keras, nnunet, hugging_face], ids=lambda write: write.__name__)
def test_learning_rates_of_logs_must_be_one_or_are_planned_with_the_batch(write, tmp_path, capsys, plan):
    logs = logs_of(write, tmp_path, rate=0.08)
    write(logs[1], 32, rate=0.32)
    line = refused(capsys, *logs, *LOGS[write][1])
    assert "curves must have one learning rate, because it changes the steps; got 0.0" in line
    out, found = plan(*logs, *LOGS[write][1], "--different-rates", "--devices", 8, 64)
    assert "Warning: each batch has its own learning rate" in out
    cells = found["clusters"].popitem()[1]["cells"]
    assert {cell["learning_rate"] for cell in cells} == {None}
    assert all(cell["batch"] <= 32 for cell in cells if cell["scaling"] == "best-batch")
    assert ("a schedule over epochs is over at fewer steps" in out) == (write is hugging_face)


@pytest.mark.parametrize(
    ("samples", "parts", "batch"), [(300, 1, 32), (574, 8, None), (1_100, 4, 128), (3_000, 8, 256)], ids=str
)
def test_a_short_epoch_of_hugging_face_tells_its_batch_or_asks_for_it(samples, parts, batch, tmp_path, capsys, plan):
    """The throughput counts samples, of which an epoch's last step has fewer."""
    steps = math.ceil(samples / (32 * parts))
    logs = logs_of(hugging_face, tmp_path)
    hugging_face(logs[1], 8)
    state = json.loads(logs[1].read_text())
    end, epochs = state["log_history"][-1], state["max_steps"] / steps
    end["train_samples_per_second"] = round(samples * epochs / end["train_runtime"], 3)
    logs[1].write_text(json.dumps(state | {"train_batch_size": 32, "num_train_epochs": epochs}))
    if batch is None:
        assert "--batches" in refused(capsys, *logs)
    else:
        assert list(plan(*logs)[1]["measured"]["steps"]) == ["8", str(batch)]


def test_a_resumed_run_of_hugging_face_has_no_time_of_a_step(tmp_path, plan):
    logs = logs_of(hugging_face, tmp_path, parts=1)
    for log in logs:
        log.write_text(log.read_text().replace('"eval_runtime": 500', '"eval_runtime": 500000'))  # longer than its last part
    assert plan(*logs)[1]["measured"]["step_s"] is None


def test_a_training_loss_and_a_rate_that_one_log_lacks_are_warned_of(tmp_path, plan):
    logs = logs_of(lightning, tmp_path)
    for log, name in zip(logs, ("lr-SGD/pg1", "other"), strict=True):
        log.write_text(log.read_text().replace("lr-SGD/pg1", name).replace("val_loss_epoch", "train_loss_epoch"))
    out = plan(*logs, *TWO, "--loss-column", "train_loss_epoch")[0]
    assert "Warning: not every log has its learning rate" in out
    assert "Warning: train_loss_epoch is a loss of training batches" in out
    trained = logs_of(hugging_face, tmp_path)
    for log in trained:
        log.write_text(log.read_text().replace('"loss": 9', '"epoch": 1').replace("eval_loss", "loss"))
    assert "Warning: training loss is a loss of training batches" in plan(*trained)[0]
    out = plan(*logs_of(lightning, tmp_path), *TWO)[0]
    assert "The learning rate stays that of the curves, 0.01." in out
    assert "Warning: not every" not in out


def test_nnunet_is_planned_by_its_pseudo_dice(tmp_path, plan):
    dice = (1 - 0.25 / 4 + 0.9) / 2  # at the target of the loss
    options = ("--loss-column", "Pseudo dice", "--mode", "max", "--target", dice)
    found = plan(*logs_of(nnunet, tmp_path), *options)[1]
    assert found["measured"]["steps"] == pytest.approx(HUNDREDFOLD, rel=0.003)


def test_an_export_of_several_runs_has_a_curve_for_each(tmp_path, capsys, plan):
    small, large = (log.read_text().splitlines() for log in logs_of(wandb_export, tmp_path))
    rows = (f"{one},{other.partition(',')[2]}\n" for one, other in zip(small, large, strict=True))
    both = tmp_path / "both.csv"
    both.write_text("".join(rows))
    for options in (TWO, (*TWO, "--loss-column", "val/loss")):
        found = plan(both, *options, *TARGET)[1]
        assert found["measured"]["steps"] == pytest.approx(HUNDREDFOLD, rel=0.003)
    assert "'run 8 - val/loss'" in refused(capsys, both)


BAD_OPTIONS = {
    "--target 0.001": "--target must be reached by every curve; got 0.001",
    "--target 1.99": "--target must be reached after the first validation of each curve; got 1.99",
    "--loss-column val": "must have one column 'val'; it has 0 in 'step', 'loss', 'batch': set --loss-column",
    "--batch-column bs": "set --batch-column, or give --batches",
    "--step-column Epoch": "--step-column must count steps of the optimiser, which the law needs; got 'Epoch'",
    "--batches 8 32": "--batches must be one for each of the 3 curves, in their order; got 2",
    "--batches 8 8 8": "--curves must be of two batches or more; got 3 of batch 8",
    "--step-times 32": "--step-times must be batches with positive seconds, such as 32=0.0021 128=0.0060; got '32'",
    "--step-times 32=1 8=nan": "--step-times must be batches with positive seconds",
    "--step-times 32=0.006 128=0.002": "--step-times must not fall with the batch; got 32=0.006 128=0.002",
    "--step-times 32=1": "--step-times must be of two batches or more",
    "--step-times 32=1 32=2": "--step-times must be of different batches; got 32 twice",
    "--clusters k80_1gbe": "--parameters must be given with --clusters",
    "--clusters k80_1gbe --parameters 1": "--step-times must be given with --clusters",
    "--clusters k80_1gbe k80_1gbe": "--clusters must be of different names",
    # As where each curve has a rate of its own.
    "--learning-rate-column batch": "curves must have one learning rate, because it changes the steps; got 8 in",
    "--samples 100": "--samples must be at least the curves' largest batch, 128; got 100",
    "--samples 1000 --devices 2000": "--devices must be at most the 1000 samples; got 2000",
}


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_a_bad_option_is_one_line(options, csvs, tmp_path, capsys):
    said = refused(capsys, *csvs, "--workdir", tmp_path / "plan", *options.split())
    assert BAD_OPTIONS[options] in said
    assert not (tmp_path / "plan").exists()


NO_CURVE = "a curve must be a CSV file, an event folder or another log of docs/curves.md; got"
BAD_FILES = {
    None: NO_CURVE,
    b"\xff\xfe\x00": NO_CURVE,
    "step,loss,batch\n1,2,8\n".encode("utf-16"): "save it as UTF-8",
    b"step,loss,batch\n": "must have a header and a row for each validation; got 1 line",
    b"": "must have a header and a row for each validation; got 0 lines",
    b"# of today\nstep,loss,batch\n1,2,8\n": "'# of today': set --loss-column, or mend the line of the names",
    b"step,loss,loss,batch\n1,2,3,8\n": "must have one column 'loss'; it has 2 in",
    b"step;loss;batch\n1;1,5;8\n": "line 2: loss must be a number; got '1,5': write decimals with a point and no unit",
    b"step,loss,batch\n1,2,8\n,1,8\n": "line 3: step must be a number; got ''",
    b"step,loss,batch\n1,2,8\n2,nan,8\n": "must be finite; got nan: remove the rows without a finite number",
    b"step,loss,batch\n1,,8\n": "must have a loss in one row at least",
    b"step,loss,batch\n2,2,8\n1,1,8\n": "must increase from 0 on; got 1 after 2",
    b"step,loss,batch\n-2,2,8\n1,1,8\n": "must increase from 0 on; got -2",
    b"step,val/box_loss,val/dfl_loss,batch\n1,2,2,8\n": "it has 'val/box_loss', 'val/dfl_loss': set --loss-column",
    b"step,loss,val_loss,batch\n1,2,2,8\n": "curves must be of one metric; got 'val_loss' in",
    b"epoch,loss,batch\n0,2,8\n1,1,8\n": "b8.csv: give --samples, of which an epoch has ceil(samples / batch) steps",
    # Away from the target.
    b"step,loss,batch\n1,1,8\n2,2,8\n3,3,8\n": "or set --mode max where higher values are better",
    b'{"log_history": 3}': NO_CURVE,
    b"step,epoch_loss,batch\n1,2,8\n": "must have a column of a loss",
    b"step,a - val_acc,b - val_acc\n1,0.2,0.3\n": "it has 'step', 'a - val_acc', 'b - val_acc': set --loss-column",
    b"step,loss,batch\n1,2,8\n2,1,9\n": "a curve must have one batch, a whole number of at least 1; got 8, 9 in",
    b"step,loss,batch\n1,2,8.5\n2,1,8.5\n": "a whole number of at least 1; got 8.5",
}


@pytest.mark.parametrize("content", BAD_FILES, ids=repr)
def test_a_bad_file_is_one_line(content, csvs, tmp_path, capsys):
    csvs[0].unlink()
    if content is not None:
        csvs[0].write_bytes(content)
    assert BAD_FILES[content] in refused(capsys, *csvs, "--workdir", tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_curves_that_cannot_be_compared_are_one_line(csvs, capsys):
    words = "--curves must be two or more, at different batches; got 1"
    assert words in refused(capsys, csvs[0])
    assert "--curves must be different files; got" in refused(capsys, csvs[0], csvs[0], csvs[1])
    csvs[0].write_text("epoch,loss,batch\n5,2,8\n6,1,8\n")  # without the first epochs
    options = ("--samples", 16_001, "--loss-column", "loss")
    assert "counted from 0 or 1; got 5" in refused(capsys, *csvs, *options)


def test_a_bad_event_folder_is_one_line(tmp_path, capsys):
    folders = [log.parent for log in logs_of(event_file, tmp_path)]

    def said(*words):
        return refused(capsys, *folders, *words)

    assert "must have one column 'dice'; it has 0 in " in said("--loss-column", "dice")
    assert "set --batch-column, or give --batches" in said("--batch-column", "size")
    assert "--step-column must be left out for event folders" in said("--step-column", "step")
    next(folders[1].iterdir()).write_bytes(b"no event" * 9)
    assert "must be a readable event file of TensorBoard" in said(*TARGET, *TWO)
    next(folders[1].iterdir()).unlink()
    for count in range(3):  # none, and then as where nnU-Net went on
        assert count == 1 or f"got {count} in {folders[1]}: name the file" in said(*TARGET, *TWO)
        (folders[1] / f"training_log_{count}.txt").touch()


def test_a_command_of_a_notebook_with_its_own_backend_needs_no_jax(csvs, tmp_path):
    words = ["gmmae", "plan", "--curves", *map(str, csvs), "--workdir", str(tmp_path / "plan")]
    lines = [f"import sys; sys.argv = {words!r}", "from gmmae.cli import main", "assert main.main() == 0"]
    program = "\n".join([*lines, "assert 'jax' not in sys.modules"])
    environment = os.environ | {"MPLBACKEND": "module://a_notebook.backend"}
    assert python("-c", program, env=environment).stderr == ""
