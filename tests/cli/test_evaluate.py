"""`gmmae evaluate`: means as the run's own validation has them, on whichever samples were asked for."""

import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.decomposition import PCA

import gmmae
from gmmae.cli.arguments import parse_train
from gmmae.cli.evaluate import COLUMNS
from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.data import grouped
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.training import checkpoint, compilation
from gmmae.training.checkpoint import Checkpoint
from gmmae.training.loop import run
from gmmae.training.records import Progress
from gmmae.training.workdir import WorkDir
from gmmae.workloads import registry
from gmmae.workloads.nodules import baselines
from tests.commands import refusal, rows, run_gmmae
from tests.small import Recorder, small


def evaluate(capsys, *arguments):
    code = run_gmmae("evaluate", *arguments)
    return code, *capsys.readouterr()


def test_the_mean_is_that_of_the_run_and_each_sample_has_its_row(mixture_run, capsys):
    folder, record = mixture_run
    code, printed, _ = evaluate(capsys, folder)
    assert code == 0
    head, loss, *_, intervals, scale, _, place = printed.splitlines()
    assert head == f"{folder}: the parameters of epoch {record.best_epoch}, the best, on 6 validation samples"
    table = rows(folder / "evaluation.csv")
    values = np.array([float(row["loss"]) for row in table])
    assert values.mean() == pytest.approx(record.best_val_loss, rel=1e-5)  # other programs round otherwise
    assert intervals.startswith("95 % intervals resample the 6 groups (patients, or scans where none is named) of 6 samples")
    name, mean, words = loss.split(maxsplit=2)
    expected = grouped.mean(values, list(map(str, range(6))))
    assert name == "loss"
    assert float(mean) == pytest.approx(values.mean(), rel=1e-5)
    assert words == f"({expected.low:.6g} to {expected.high:.6g})"
    for model in ("mean_volume", "pca_5", "pca_8"):
        better = values.mean() < np.mean([float(row[model]) for row in table])
        assert f"{'better' if better else 'worse'} than {model} (" in scale
    assert place.split() == ["samples", str(folder / "evaluation.csv")]
    assert {row["split"] for row in table} == {"validation"}
    assert list(table[0]) == [*[*COLUMNS][:4], "mean_volume", "pca_5", "pca_8", "refined_30"]
    names = registry.build(small()).load().names
    assert names is not None
    assert [row["name"] for row in table] == names["validation"]


@pytest.mark.parametrize(("loss", "power"), [("msle", 2), ("mae", 1)])
def test_the_scale_is_that_of_scikit_learns_components(loss, power):
    data = registry.build(small()).load()
    parts = [part.reshape(len(part), -1) for part in (data.train, data.validation)]
    train, samples = map(np.log1p, parts) if loss == "msle" else parts
    found = baselines(small(loss=loss, model__latent_dim=128).settings, data.train)[1](data.validation)
    for count, name in ((0, "mean_volume"), (5, "pca_5"), (21, "pca_21")):
        pca = PCA(count).fit(train)
        error = samples - (pca.inverse_transform(pca.transform(samples)) if count else train.mean(0))
        np.testing.assert_allclose(found[name], (abs(error) ** power).mean(1), rtol=1e-3)


def test_other_data_are_evaluated_whole_however_few_they_are(mixture_run, tmp_path, capsys):
    folder, _ = mixture_run
    out = tmp_path / "other.csv"
    code, printed, _ = evaluate(capsys, folder, "--data.seed", 5, "--data.samples", 4, "--out", out)
    assert code == 0  # the run's 6 validation samples would be too many
    assert printed.splitlines()[0].endswith("on 4 unseen samples")
    assert "for scale: the loss " in printed
    table = rows(out)
    assert len(table) == 4
    model = gmmae.load(folder, data__seed=5, data__samples=4, data__validation=0.25)
    data = model.workload.load()
    expected = np.concatenate([model.losses(data.train), model.losses(data.validation)])
    np.testing.assert_allclose([float(row["loss"]) for row in table], expected, rtol=1e-4)
    simple = baselines(small().settings, registry.build(small()).load().train)[1]  # of the run's training volumes
    expected = np.concatenate([simple(data.train)["pca_5"], simple(data.validation)["pca_5"]])
    np.testing.assert_allclose([float(row["pca_5"]) for row in table], expected, rtol=1e-4)


def test_other_data_have_no_scale_where_the_runs_own_have_changed(mixture_run, tmp_path, capsys):
    shutil.copytree(mixture_run.folder, folder := tmp_path / "run")
    path = folder / "fingerprint.json"
    path.write_text(path.read_text().replace('"train": ["', '"train": ["other'))
    code, printed, _ = evaluate(capsys, folder, "--data.seed", 5, "--data.samples", 4)
    assert (code, "for scale" in printed) == (0, False)


def test_a_run_whose_folder_of_data_was_ignored_can_be_opened(mixture_run, tmp_path, capsys):
    """Earlier versions trained on synthetic nodules where only `--data.root` was given."""
    folder = tmp_path / "run"
    shutil.copytree(mixture_run.folder, folder)
    config = WorkDir(folder).config
    config.write_text(config.read_text().replace('root = "none"', 'root = "scans"'))
    assert evaluate(capsys, folder, "--data.cache", tmp_path / "cache")[0] == 0
    message = "data.source must be cubes for others; got 'synthetic'"
    assert message in refusal(capsys, "evaluate", folder, "--data.root", "others")
    assert gmmae.load(folder).record.epochs == mixture_run.record.epochs
    with pytest.raises(InputError, match=message):
        gmmae.load(folder, data__root="others")


def test_a_loaded_model_s_other_data_do_not_go_by_the_runs_list(tmp_path, monkeypatch):
    own = changed(small(), data__source="cubes", data__root=str(tmp_path), data__csv=str(tmp_path / "mine.csv"))
    write_text(WorkDir(tmp_path).config, to_toml(own))
    WorkDir(tmp_path).record.touch()
    monkeypatch.setattr("gmmae.training.trained.restore", lambda config, workdir: config.settings.data.csv)
    assert gmmae.load(tmp_path) == own.settings.data.csv
    assert gmmae.load(tmp_path, data__root="elsewhere") == "auto"
    assert gmmae.load(tmp_path, data__root="elsewhere", data__csv="theirs.csv") == "theirs.csv"


def test_a_workload_of_ones_own_has_its_metrics_and_numbers_for_names(own_run, capsys):
    folder, record = own_run
    code, printed, _ = evaluate(capsys, folder)
    assert code == 0
    table = rows(folder / "evaluation.csv")
    assert list(table[0]) == ["name", "split", "loss", "accuracy"]  # it names no groups
    assert "95 % intervals take the 24 samples for independent of each other: the workload names no groups\n" in printed
    assert [row["name"] for row in table] == list(map(str, range(24)))
    assert np.mean([float(row["accuracy"]) for row in table]) == pytest.approx(record.best_metrics["accuracy"])
    assert np.mean([float(row["loss"]) for row in table]) == pytest.approx(record.best_val_loss, rel=1e-5)
    assert "accuracy" in printed


SCALED = """
from dataclasses import dataclass
from pathlib import Path
import jax.numpy as jnp
import numpy as np
from gmmae.workloads.interface import Splits, Workload

@dataclass(frozen=True)
class Config:
    pass

class Counts:
    def __len__(self):
        return 20

    def __getitem__(self, index):  # it never raises an IndexError
        return np.array([index % 20, 1001], ">i4")

def build(config):
    scale = float(Path(__file__).with_name("scale.txt").read_text())

    def losses(params, samples, keys):
        return (scale * (params["x"] - samples[:, 0]) ** 2).astype(jnp.bfloat16)

    def metrics(params, samples):
        return {"count": samples[:, 1]}

    return Workload(lambda: Splits(Counts(), Counts()), lambda key: {"x": jnp.zeros(())}, losses, metrics)
"""


def test_a_source_is_evaluated_in_its_own_numbers_and_says_what_a_changed_file_has_done(tmp_path, capsys):
    (tmp_path / "scaled.py").write_text(SCALED)
    (tmp_path / "scale.txt").write_text("1")
    run = tmp_path / "run"
    options = ("--parallel.devices", 1, "--stop.max-epochs", 1, "--log.no-tensorboard")
    assert run_gmmae("train", "--config", "none", "--workload", tmp_path / "scaled.py", "--workdir", run, *options) == 0
    assert evaluate(capsys, run)[0] == 0
    table = rows(run / "evaluation.csv")
    assert [float(row["count"]) for row in table] == [1001] * 20, "no number is rounded to the 8 bits of the loss"
    (tmp_path / "scale.txt").write_text("2")
    more = ("--stop.max-epochs", 2)
    for command in (
        ("evaluate", run),
        ("export", run, "--out", tmp_path / "model.zip"),
        ("train", "--config", "none", "--workload", tmp_path / "scaled.py", "--workdir", run, *options, *more),
    ):
        assert run_gmmae(*command) == 0
        assert "warning: the validation loss of these parameters was " in capsys.readouterr().err


IN_ANOTHER_UNIT = """
from dataclasses import dataclass
import jax.numpy as jnp
import numpy as np
from gmmae.workloads.interface import Splits, Workload

@dataclass(frozen=True)
class Config:
    scale: float = 1.0
    kind: str = "named"

class Rows:
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

def build(config):
    x = np.arange(96, dtype=np.float32).reshape(24, 4) * np.float32(config.scale)
    origins = {"train": range(12), "validation": [f"scan {i}" for i in range(12)]} if config.kind == "named" else None
    validation = Rows(x[12:]) if config.kind == "source" else x[12:]
    data = Splits(x[:12], validation, origins=origins, columns={"validation": {"site": range(12)}})
    return Workload(lambda: data, lambda key: {"w": jnp.zeros(4)}, lambda params, x, keys: (x @ params["w"] - 1) ** 2)
"""


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [("named", ["train"] * 12 + ["validation"] * 12), ("plain", ["unknown"] * 24), ("source", ["unknown"] * 24)],
)
def test_samples_of_ones_own_are_known_by_their_origins_in_other_settings_too(tmp_path, capsys, kind, kinds):
    (tmp_path / "mine.py").write_text(IN_ANOTHER_UNIT)
    run, words = tmp_path / "run", ("--kind", kind, "--stop.max-epochs", 1, "--log.no-tensorboard")
    assert run_gmmae("train", "--config", "none", "--workload", tmp_path / "mine.py", "--workdir", run, *words) == 0
    assert evaluate(capsys, run, "--scale", 2.0, "--out", tmp_path / "all.csv")[0] == 0
    table = rows(tmp_path / "all.csv")
    assert [row["split"] for row in table] == kinds
    assert (table[0]["site"], table[-1]["site"]) == ("", "11")


def test_a_run_that_cannot_be_written_is_evaluated_all_the_same(mixture_run, capsys):
    folder, _ = mixture_run
    (folder / "evaluation.csv").unlink(missing_ok=True)
    (folder / "evaluation.csv").mkdir()
    code, printed, _ = evaluate(capsys, folder)
    (folder / "evaluation.csv").rmdir()
    assert code == 0
    assert f"no CSV was written: {folder} cannot be written (Is a directory)" in printed


DISTANCES = """
from dataclasses import dataclass
import jax.numpy as jnp
import numpy as np
from gmmae.config.rules import Section
from gmmae.workloads.interface import Splits
from gmmae.workloads.interface import Workload

@dataclass(frozen=True)
class Config(Section):
    groups: str = "aabbcc"  # of the validation samples
    last: str = "6"  # the last validation sample

def build(config):
    values = np.array([1, 1, 2, 2, 6, float(config.last)], np.float32)
    groups = {"train": [*"xyzxyz"], "validation": [*config.groups]} if config.groups else None
    data = Splits(np.zeros(6, np.float32), values, groups=groups)
    return Workload(lambda: data, lambda key: jnp.zeros(1), lambda p, x, k: x - p[0] * 0)
"""
"""A workload whose validation losses are 1, 1, 2, 2, 6 and `last`."""


@pytest.fixture(scope="module")
def distances(tmp_path_factory):
    root = tmp_path_factory.mktemp("distances")
    (root / "distances.py").write_text(DISTANCES)
    options = ["--workload", str(root / "distances.py"), "--stop.max-epochs", "1", "--log.no-tensorboard"]
    config = parse_train([*options, "--parallel.devices", "1", "--optim.batch-size", "2"], "train.py")[0]
    run(config, root / "run", Recorder())
    return root / "run"


PATIENTS = "(patients, or scans where none is named)"


@pytest.mark.parametrize(
    ("groups", "last", "lines"),
    [
        ("aabbcc", 6, f"loss 3 (INTERVAL) 95 % intervals resample the 3 groups {PATIENTS} of 6 samples; so few groups"),
        ("abcdef", 6, f"loss 3 (INTERVAL) 95 % intervals resample the 6 groups {PATIENTS} of 6 samples; so few groups"),
        (
            "",
            6,
            "loss 3 (INTERVAL) 95 % intervals take the 6 samples for independent of each other: the workload names no groups",
        ),
        ("aaaaaa", 6, f"loss 3 no intervals: they need at least 2 groups {PATIENTS}; the 6 samples are of one"),
        ("aabbcc", "nan", "unknown: loss nan (1 of 1 values is not finite)"),
        ("aabbcc", "inf", "unknown: loss inf (1 of 1 values is not finite)"),
    ],
)
def test_intervals_resample_patients_and_say_what_they_resample(distances, tmp_path, capsys, groups, last, lines):
    options = ("--groups", groups, "--last", last, "--out", tmp_path / "out.csv")
    code, printed, _ = evaluate(capsys, distances, "--split", "validation", *options)
    assert code == 0
    expected = grouped.mean(np.array([1.0, 1, 2, 2, 6, 6]), [*(groups or "abcdef")])
    interval = f"{expected.low:.6g} to {expected.high:.6g}"
    assert lines.replace("INTERVAL", interval) in " ".join(printed.split())
    if groups == "aabbcc":
        assert (expected.low, expected.high) == (1, 6)
    assert [row.get("group", "") for row in rows(tmp_path / "out.csv")] == [*(groups or [""] * 6)]


def test_parameters_that_are_not_finite_are_no_model(mixture_run, tmp_path, capsys):
    folder, record = tmp_path / "run", mixture_run[1]
    shutil.copytree(mixture_run[0], folder)
    setup = compilation.prepare(small())
    state = compilation.initial_state(setup)
    broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.inf), state.params)
    with checkpoint.opened(folder / "checkpoints", keep=1) as manager:
        checkpoint.save(manager, Checkpoint(state, broken, Progress(3, record.best_epoch, {}, 3, "0")))
    code, printed, error = evaluate(capsys, folder)
    assert (code, printed) == (2, "")
    assert error == (
        f"error: the checkpoint {folder / 'checkpoints' / '3'} must hold finite parameters; some are NaN or "
        "infinite: train again, or give another workdir\n"
    )


def test_out_replaces_an_earlier_evaluation_and_no_other_file(mixture_run, tmp_path, capsys):
    for name, text, expected in (("own.csv", "", 0), ("own.csv", None, 0), ("thesis.txt", "precious", 2)):
        if text is not None:
            (tmp_path / name).write_text(text)
        code, _, error = evaluate(capsys, mixture_run.folder, "--out", tmp_path / name)
        assert (code, "which holds something else" in error) == (expected, expected == 2)
    assert (tmp_path / "thesis.txt").read_text() == "precious"
    assert len(rows(tmp_path / "own.csv")) == 6


def test_the_rows_of_the_runs_own_validation_are_not_overwritten(mixture_run, capsys):
    places, files, printed = [], [], ""
    options = [(), ("--split", "train"), ("--data.seed", 5), ("--data.seed", 6), ("--data.seed", 5, "--split", "validation")]
    for more in [*options, ("--loss", "mae")]:
        code, printed, _ = evaluate(capsys, mixture_run.folder, *more)
        assert code == 0
        places.append(Path(printed.splitlines()[-1].removeprefix("samples").strip()))
        files.append(places[-1].read_text())
    assert "on 6 validation samples\n" in printed  # another loss of the same data
    assert np.mean([float(row["loss"]) for row in rows(places[-1])]) > 2 * mixture_run.record.best_val_loss
    assert len(set(places)) == len(places)
    assert [place.read_text() for place in places] == files
    own, train, other, *_, mae = (place.name for place in places)
    assert (own, train) == ("evaluation.csv", "evaluation_train.csv")
    assert re.fullmatch(r"evaluation_all_synthetic_[0-9a-f]{8}\.csv", other)
    assert re.fullmatch(r"evaluation_[0-9a-f]{8}\.csv", mae)
    _, printed, _ = evaluate(capsys, mixture_run.folder, "--data.seed", 5)
    assert printed.endswith(f" {places[2]}\n")  # the same question


def test_samples_in_small_batches_have_the_same_losses(mixture_run, monkeypatch):
    model = gmmae.load(mixture_run.folder)
    samples = model.workload.load().validation
    expected = model.losses(samples)
    monkeypatch.setattr(compilation, "EVAL_DEVICE_BATCH", 4)  # the last batch is padded
    np.testing.assert_allclose(model.losses(samples), expected, rtol=1e-4)  # forms of a convolution depend on the batch


def test_what_has_no_entry_a_sample_is_refused_where_batches_are_many(mixture_run, monkeypatch):
    model = gmmae.load(mixture_run[0])
    model = model._replace(workload=model.workload._replace(describe=lambda params, samples: {"filters": np.ones((3, 2))}))
    assert model.describe(model.workload.load().validation)["filters"].shape == (3, 2)
    monkeypatch.setattr(compilation, "EVAL_DEVICE_BATCH", 4)
    with pytest.raises(InputError, match=r"one entry a sample to be used on more than 4 samples; got the shape \(3, 2\) for 4"):
        model.describe(model.workload.load().validation)


def test_only_mixtures_can_be_refined_and_known_keys_be_changed(own_run):
    with pytest.raises(InputError, match=r"unknown key 'optim\.batch_sise'; did you mean 'optim\.batch_size'"):
        gmmae.load(own_run.folder, optim__batch_sise=3)
    model = gmmae.load(own_run.folder)
    with pytest.raises(InputError, match="a workload must have `refine`"):
        model.refine(model.workload.load().validation)
