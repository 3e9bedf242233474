"""`gmmae evaluate`: means as the run's own validation has them, on whichever samples were asked for."""

import re
import shutil
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.decomposition import PCA

import gmmae
from gmmae.cli.evaluate import COLUMNS
from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.data import grouped
from gmmae.system.errors import InputError
from gmmae.training import checkpoint, preparation
from gmmae.training.checkpoint import Checkpoint
from gmmae.training.records import Progress
from gmmae.workloads import registry
from gmmae.workloads.interface import WorkloadError
from gmmae.workloads.nodules import baselines
from tests.commands import lines_of, refusal, rows, run_gmmae
from tests.small import small


@pytest.fixture
def evaluate(capsys, monkeypatch):
    monkeypatch.setattr("gmmae.cli.evaluate.MAX_REFINED_VALUES", 2**12)  # enough for six samples: it is slow to compile
    return partial(lines_of, capsys, "evaluate")


def column(table, name):
    return np.array([float(row[name]) for row in table])


def train(folder, source, *words):
    """Trains a workload of this source for an epoch, and returns the words that do it."""
    (folder / "mine.py").write_text(source)
    call = ["train", "--config", "none", "--workload", folder / "mine.py", "--workdir", folder / "run", "--stop.max-epochs", 1]
    call += ["--parallel.devices", 1, "--log.no-tensorboard", *words]
    assert run_gmmae(*call) == 0
    return call


def test_the_mean_is_that_of_the_run_and_each_sample_has_its_row(mixture_run, evaluate):
    folder, record = mixture_run
    head, loss, *_, intervals, scale, _, place = evaluate(folder)
    assert head == f"{folder}: the parameters of epoch {record.best_epoch}, the best, on 6 validation samples"
    table = rows(folder / "evaluation.csv")
    values = column(table, "loss")
    assert values.mean() == pytest.approx(record.best_val_loss, rel=1e-5)  # other programs round otherwise
    assert intervals.startswith("95 % intervals resample the 6 groups (patients, or scans where none is named) of 6 samples")
    name, mean, words = loss.split(maxsplit=2)
    expected = grouped.mean(values, list(map(str, range(6))))
    assert name == "loss"
    assert float(mean) == pytest.approx(values.mean(), rel=1e-5)
    assert words == f"({expected.low:.6g} to {expected.high:.6g})"
    for model in ("mean_volume", "pca_5", "pca_8"):
        better = values.mean() < column(table, model).mean()
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


def test_other_data_are_evaluated_whole_however_few_they_are(mixture_run, tmp_path, evaluate):
    folder, out = mixture_run.folder, tmp_path / "other.csv"
    # The run's 6 validation samples would be too many.
    printed = evaluate(folder, "--data.seed", 5, "--data.samples", 4, "--out", out)
    assert printed[0].endswith("on 4 unseen samples")
    assert "for scale: the loss " in "\n".join(printed)
    model = gmmae.load(folder, data__seed=5, data__samples=4, data__validation=0.25)
    data = model.workload.load()
    simple = baselines(small().settings, registry.build(small()).load().train)[1]  # of the run's training volumes
    for name, values in (("loss", model.losses), ("pca_5", lambda samples: simple(samples)["pca_5"])):
        expected = np.concatenate([values(data.train), values(data.validation)])
        np.testing.assert_allclose(column(rows(out), name), expected, rtol=1e-4)


def test_other_data_have_no_scale_where_the_runs_own_have_changed(mixture_run, tmp_path, evaluate):
    folder = shutil.copytree(mixture_run.folder, tmp_path / "run")
    path = folder / "fingerprint.json"
    path.write_text(path.read_text().replace('"train": ["', '"train": ["other'))
    assert "for scale" not in "\n".join(evaluate(folder, "--data.seed", 5, "--data.samples", 4))


def test_a_run_whose_folder_of_data_was_ignored_can_be_opened(mixture_run, tmp_path, capsys, evaluate):
    """Earlier versions trained on synthetic nodules where only `--data.root` was given."""
    folder = shutil.copytree(mixture_run.folder, tmp_path / "run")
    config = folder / "config.toml"
    config.write_text(config.read_text().replace('root = "none"', 'root = "scans"'))
    evaluate(folder, "--data.cache", tmp_path / "cache")
    message = "data.source must be cubes for others; got 'synthetic'"
    assert message in refusal(capsys, "evaluate", folder, "--data.root", "others")
    assert gmmae.load(folder).record.epochs == mixture_run.record.epochs
    with pytest.raises(InputError, match=message):
        gmmae.load(folder, data__root="others")


def test_a_loaded_model_s_other_data_do_not_go_by_the_runs_list(tmp_path, monkeypatch):
    own = changed(small(), data__source="cubes", data__root=str(tmp_path), data__csv=str(tmp_path / "mine.csv"))
    (tmp_path / "config.toml").write_text(to_toml(own))
    (tmp_path / "record.json").touch()
    monkeypatch.setattr("gmmae.training.trained.restore", lambda config, workdir: config.settings.data.csv)
    assert gmmae.load(tmp_path) == own.settings.data.csv
    assert gmmae.load(tmp_path, data__root="elsewhere") == "auto"
    assert gmmae.load(tmp_path, data__root="elsewhere", data__csv="theirs.csv") == "theirs.csv"


def test_a_workload_of_ones_own_has_its_metrics_and_numbers_for_names(own_run, evaluate):
    folder, record = own_run
    printed = evaluate(folder)
    table = rows(folder / "evaluation.csv")
    assert list(table[0]) == ["name", "split", "loss", "accuracy"]  # it names no groups
    assert "95 % intervals take the 24 samples for independent of each other: the workload names no groups" in printed
    assert [row["name"] for row in table] == list(map(str, range(24)))
    assert column(table, "accuracy").mean() == pytest.approx(record.best_metrics["accuracy"])
    assert column(table, "loss").mean() == pytest.approx(record.best_val_loss, rel=1e-5)
    assert "accuracy" in "\n".join(printed)


SCALED = """
from dataclasses import dataclass
from pathlib import Path
import jax.numpy as jnp
import jax
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


def test_a_source_is_evaluated_in_its_own_numbers_and_says_what_a_changed_file_has_done(tmp_path, capsys, evaluate):
    run = tmp_path / "run"
    (tmp_path / "scale.txt").write_text("1")
    call = train(tmp_path, SCALED)
    evaluate(run)
    table = rows(run / "evaluation.csv")
    assert column(table, "count").tolist() == [1001] * 20, "no number is rounded to the 8 bits of the loss"
    (tmp_path / "scale.txt").write_text("2")
    for command in (("evaluate", run), ("export", run, "--out", tmp_path / "model.zip"), (*call, "--stop.max-epochs", 2)):
        assert run_gmmae(*command) == 0
        assert "warning: the validation loss of these parameters was " in capsys.readouterr().err


IN_ANOTHER_UNIT = """
from dataclasses import dataclass
import jax.numpy as jnp
import jax
import numpy as np
from gmmae.workloads.interface import Splits, Workload

@dataclass(frozen=True)
class Config:
    scale: float = 1.0
    kind: str = "named"

class Rows:
    def __init__(self, *arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, index):
        return tuple(array[index] for array in self.arrays)

def build(config):
    x, labels = np.arange(96, dtype=np.float32).reshape(24, 4) * np.float32(config.scale), np.arange(24)
    origins = {"train": range(12), "validation": [f"scan {i}" for i in range(12)]} if config.kind == "named" else None
    validation = x[12:], labels[12:]
    validation = Rows(*validation) if config.kind == "source" else validation
    columns = {"site": range(12), "loss": "x" * 12, "csv_loss": "y" * 12}
    data = Splits((x[:12], labels[:12]), validation, origins=origins, columns={"validation": columns})
    losses = lambda params, samples, keys: (samples[0] @ params["w"] - config.scale) ** 2
    return Workload(lambda: data, lambda key: {"w": jnp.zeros(4)}, losses)
"""


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [("named", ["train"] * 12 + ["validation"] * 12), ("plain", ["unknown"] * 24), ("source", ["unknown"] * 24)],
)
def test_samples_of_ones_own_are_known_by_their_origins_in_other_settings_too(tmp_path, kind, kinds, capsys):
    train(tmp_path, IN_ANOTHER_UNIT, "--kind", kind)
    assert run_gmmae("evaluate", tmp_path / "run", "--scale", 2.0, "--out", tmp_path / "all.csv") == 0
    assert "a setting that `build` computes with" in capsys.readouterr().err
    with pytest.raises(WorkloadError, match="one floating-point number a sample"):
        gmmae.load(tmp_path / "run").losses((np.ones((2, 1, 4), np.float32), np.arange(2)))
    table = rows(tmp_path / "all.csv")
    assert [row["split"] for row in table] == kinds
    assert (table[0]["site"], table[-1]["site"]) == ("", "11")
    assert (table[-1]["csv_loss"], table[-1]["csv_csv_loss"]) == ("x", "y")


def test_a_run_that_cannot_be_written_is_evaluated_all_the_same(mixture_run, evaluate):
    folder = mixture_run.folder
    (folder / "evaluation.csv").unlink(missing_ok=True)
    (folder / "evaluation.csv").mkdir()
    printed = evaluate(folder)
    (folder / "evaluation.csv").rmdir()
    assert f"no CSV was written: {folder} cannot be written (Is a directory)" in "\n".join(printed)


DISTANCES = """
from dataclasses import dataclass
import jax.numpy as jnp
import jax
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
    train(root, DISTANCES, "--optim.batch-size", 2)
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
def test_intervals_resample_patients_and_say_what_they_resample(distances, tmp_path, groups, last, lines, evaluate):
    options = ("--groups", groups, "--last", last, "--out", tmp_path / "out.csv")
    printed = " ".join(" ".join(evaluate(distances, "--split", "validation", *options)).split())
    expected = grouped.mean(np.array([1.0, 1, 2, 2, 6, 6]), [*(groups or "abcdef")])
    assert lines.replace("INTERVAL", f"{expected.low:.6g} to {expected.high:.6g}") in printed
    if groups == "aabbcc":
        assert (expected.low, expected.high) == (1, 6)
    assert [row.get("group", "") for row in rows(tmp_path / "out.csv")] == [*(groups or [""] * 6)]


def test_parameters_that_are_not_finite_are_no_model(mixture_run, tmp_path, capsys):
    folder = shutil.copytree(mixture_run.folder, tmp_path / "run")
    state = preparation.initial_state(preparation.prepare(small()))
    broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.inf), state.params)
    with checkpoint.opened(folder / "checkpoints", keep=1) as manager:
        checkpoint.save(manager, Checkpoint(state, broken, Progress(3, mixture_run.record.best_epoch, {}, 3, "0")))
    message = (
        f"the checkpoint {folder / 'checkpoints' / '3'} must hold finite parameters; some are NaN or infinite: train again"
    )
    assert message in refusal(capsys, "evaluate", folder)


def test_out_replaces_an_earlier_evaluation_and_no_other_file(mixture_run, tmp_path, capsys, evaluate):
    own, thesis = tmp_path / "own.csv", tmp_path / "thesis.txt"
    own.touch()
    for _ in range(2):
        evaluate(mixture_run.folder, "--out", own)
    assert len(rows(own)) == 6
    thesis.write_text("precious")
    assert "which holds something else" in refusal(capsys, "evaluate", mixture_run.folder, "--out", thesis)
    assert thesis.read_text() == "precious"


def test_the_rows_of_the_runs_own_validation_are_not_overwritten(mixture_run, evaluate):
    places, files, printed = [], [], []
    options = [(), ("--split", "train"), ("--data.seed", 5), ("--data.seed", 6), ("--data.seed", 5, "--split", "validation")]
    for more in [*options, ("--loss", "mae")]:
        printed = evaluate(mixture_run.folder, *more)
        places.append(Path(printed[-1].removeprefix("samples").strip()))
        files.append(places[-1].read_text())
    assert printed[0].endswith("on 6 validation samples")  # another loss of the same data
    assert column(rows(places[-1]), "loss").mean() > 2 * mixture_run.record.best_val_loss
    assert len(set(places)) == len(places)
    assert [place.read_text() for place in places] == files
    own, train, other, *_, mae = (place.name for place in places)
    assert (own, train) == ("evaluation.csv", "evaluation_train.csv")
    assert re.fullmatch(r"evaluation_all_synthetic_[0-9a-f]{8}\.csv", other)
    assert re.fullmatch(r"evaluation_[0-9a-f]{8}\.csv", mae)
    assert evaluate(mixture_run.folder, "--data.seed", 5)[-1].endswith(f" {places[2]}")  # the same question


def test_samples_in_small_batches_have_the_same_losses(mixture_run):
    model = gmmae.load(mixture_run.folder)
    samples = model.workload.load().validation
    batched = gmmae.load(mixture_run.folder, parallel__micro_batch_size=4)  # the last batch is padded
    # Forms of a convolution depend on the batch.
    np.testing.assert_allclose(batched.losses(samples), model.losses(samples), rtol=1e-4)


def test_what_has_no_entry_a_sample_is_refused_where_batches_are_many(mixture_run):
    model, batched = gmmae.load(mixture_run.folder), gmmae.load(mixture_run.folder, parallel__micro_batch_size=4)
    workload = model.workload._replace(describe=lambda params, samples: {"filters": np.ones((3, 2))})
    assert model._replace(workload=workload).describe(workload.load().validation)["filters"].shape == (3, 2)
    with pytest.raises(InputError, match=r"one entry a sample to be used on more than 4 samples; got the shape \(3, 2\) for 4"):
        batched._replace(workload=workload).describe(workload.load().validation)


def test_only_mixtures_can_be_refined_and_known_keys_be_changed(own_run):
    with pytest.raises(InputError, match=r"unknown key 'optim\.batch_sise'; did you mean 'optim\.batch_size'"):
        gmmae.load(own_run.folder, optim__batch_sise=3)
    model = gmmae.load(own_run.folder)
    with pytest.raises(InputError, match="a workload must have `refine`"):
        model.refine(model.workload.load().validation)
