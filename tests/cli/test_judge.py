"""`gmmae judge`, from arrays in files to the page."""

import csv
import json

import numpy as np
import pytest

from gmmae.cli.main import COMMANDS
from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.data.splits import split
from gmmae.generation.judging import page
from gmmae.system.errors import InputError
from gmmae.training.records import Record, to_json
from tests.commands import run_gmmae
from tests.generation.nodules import balls
from tests.small import small

command = COMMANDS["judge"]
OPTIONS = ("--data.shape", "8", "--data.crop", "whole", "--data.workers", "1")


pytestmark = pytest.mark.usefixtures("few_divisions")


def stored(path, nodules):
    names = dict(names=np.array(nodules.names), groups=np.array(nodules.groups), categories=np.array(nodules.categories))
    masks = {} if nodules.masks is None else {"masks": nodules.masks}
    np.savez(path, volumes=nodules.values, **names, **masks)
    return str(path)


@pytest.fixture
def files(tmp_path):
    real = stored(tmp_path / "real.npz", balls(0, 60))
    generated = stored(tmp_path / "generated.npz", balls(1, 30, "new"))
    train = stored(tmp_path / "train.npz", balls(2, 60, "trained"))
    return real, generated, train, (*OPTIONS, "--data.cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out"))


def test_a_judgement_is_a_page_plain_data_and_a_dozen_lines(files, tmp_path, capsys):
    real, generated, train, options = files
    assert command([real, generated, "--train", train, *options], "gmmae judge") == 0
    out = tmp_path / "out"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        "30 generated and 60 real nodules; compared: 30 generated and 30 other real nodules, each with the same 30 of the real "
        f"ones ({json.loads((out / 'judgement.json').read_text())['real_vs_real']['patients'][0]} patients, or scans if no "
        "patient is named)"
    )
    assert said[1].endswith("  perfect")
    assert "generated, n = 30" in said[1]
    assert "real, n = 30" in said[1]
    assert said[-3:] == [str(out / name) for name in ("judgement.html", "judgement.md", "judgement.json")]
    found = json.loads((out / "judgement.json").read_text())
    assert said[2].split()[:3] == ["C2ST,", "AUC", f"{found['generated']['c2st'][0]:.2f}"]
    assert {found[column]["samples"] for column in ("generated", "real_vs_real")} == {30}
    assert 0.8 < found["novelty"]["nn"][0] < 1.2
    assert next(iter(found["novelty"]["nearest_distance"])) == "new0"
    assert len(found["real_vs_real"]["ks"]) == 29
    page = (out / "judgement.md").read_text()
    for words in (
        "| C2ST, AUC |",
        "| novelty NNsym |",
        "## Nearest training nodules",
        "](figures/slices.png)",
        "Generated: A",
    ):
        assert words in page
    assert (out / "judgement.html").read_text().count("data:image/") == 3
    # The folder of an earlier judgement is replaced.
    (out / "stale").write_text("")
    assert command([real, generated, *options], "gmmae judge") == 0
    assert not (out / "stale").exists()
    assert "novelty is unknown" in capsys.readouterr().out


def test_split_divides_the_real_nodules_as_training_did(files, capsys, no_page):
    real, generated, _, options = files
    assert command([real, generated, "--split", "validation", "--data.validation", "26", *options], "gmmae judge") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("30 generated and 26 real nodules; compared: 26 generated and 26 other real")
    assert "rejects copies" not in printed  # these have no record of a run
    assert "novelty is unknown" not in printed


def test_what_differs_beside_the_figures_is_told(files, tmp_path, capsys, no_page):
    real, _, _, options = files
    others = balls(1, 30, "new")._replace(categories=("solid",) * 20 + ("part-solid",) * 10, masks=None)
    command([real, stored(tmp_path / "others.npz", others), *options], "gmmae judge")
    said = capsys.readouterr().out
    assert "shapes follow from intensity" in said
    assert "of real and generated nodules part-solid 0% and 33%, solid 100% and 67%" in said
    assert "each with the same 30 of the first half of the real ones" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda real, generated, train: [real, generated, "--split", "validation", "--train", train],
            "must not be given together",
        ),
        (lambda real, generated, train: ["nowhere", generated], "REAL: data.root must be a folder of volumes or one .npz"),
        (lambda real, generated, train: [real, "nowhere"], "GENERATED: data.root must be a folder of volumes"),
        (lambda real, generated, train: [real, generated, "--train", "nowhere"], "--train: data.root must be a folder"),
        (lambda real, generated, train: [real, generated, "--train", real], "30 of its 30 patients are in --train"),
        (lambda real, generated, train: [real, real], "REAL and GENERATED must be two sets of nodules; both are "),
        (
            lambda real, generated, train: [real, generated, "--count", "-1"],
            "1 to 100000, or all; got -1",
        ),
        (
            lambda real, generated, train: [real, generated, "--count", "31"],
            "--count must be all, or from 25 to 30",
        ),
    ],
)
def test_what_is_wrong_is_told_in_a_line(files, change, message):
    *names, options = files
    with pytest.raises(InputError) as error:
        command([*change(*names), *options], "gmmae judge")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_with_other_files_is_not_replaced(files, tmp_path):
    real, generated, *_ = files
    kept = tmp_path / "mine" / "thesis.tex"
    kept.parent.mkdir()
    kept.write_text("")
    with pytest.raises(
        InputError, match=r"--out must be a folder that is new or empty, or an earlier result, which is replaced"
    ):
        command([real, generated, *OPTIONS, "--data.cache", str(tmp_path / "cache"), "--out", str(kept.parent)], "gmmae judge")
    assert kept.exists()


@pytest.fixture
def no_page(monkeypatch):
    """For what the page does not show."""
    monkeypatch.setattr(page, "write", lambda *_: [])


def in_unit(nodules, low, high):
    """The same nodules, with the window of CT stretched to another one."""
    shares = (np.clip(nodules.values, -1000, 400) + 1000) / 1400
    return nodules._replace(values=(low + (high - low) * shares).astype(np.float32))


def test_the_window_is_that_of_the_data(tmp_path, capsys, no_page):
    """Volumes of 0 to 1 are nearly constant in CT's window."""
    low, high = 0, 1
    real, generated = in_unit(balls(0, 60), low, high), in_unit(balls(1, 30, "new", shift=140), low, high)
    names = [stored(tmp_path / name, nodules) for name, nodules in (("real.npz", real), ("generated.npz", generated))]
    options = ["--data.window", str(low), str(high), "--data.cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    assert command([*names, *OPTIONS, *options], "gmmae judge") == 0
    said = capsys.readouterr().out
    (row,) = (line for line in said.splitlines() if line.startswith("C2ST, AUC "))
    assert float(row.removeprefix("C2ST, AUC ").split()[0]) > 0.9  # all features are equal in CT's window
    assert "stretched to -1000 to 400" in said


def judge(capsys, *arguments):
    code = run_gmmae("judge", *arguments)
    return code, *capsys.readouterr()


@pytest.mark.parametrize("patients", [1, 9])
def test_too_few_patients_are_one_line(files, tmp_path, capsys, patients):
    _, generated, _, options = files
    real = balls(0, 60)._replace(groups=tuple(f"patient{i % patients}" for i in range(60)))
    code, printed, error = judge(capsys, stored(tmp_path / "few.npz", real), generated, *options)
    assert (code, printed) == (2, "")
    assert error.endswith(
        "error: REAL must have at least 50 nodules of at least 10 patients (or scans, if no patient is named); got 60 of "
        f"{patients}: add some, or name the training set with --train\n"
    )


def test_few_patients_are_told_beside_their_intervals(files, tmp_path, capsys, no_page):
    _, generated, train, options = files
    real = balls(0, 60)._replace(groups=tuple(f"patient{i % 5}" for i in range(60)))
    code, printed, _ = judge(capsys, stored(tmp_path / "few.npz", real), generated, "--train", train, *options)
    assert code == 0
    assert "intervals are too narrow, because one set has only 5 patients" in printed


def test_volumes_of_another_size_are_resampled(tmp_path, capsys, no_page):
    names = [stored(tmp_path / "real.npz", balls(0, 60, size=8)), stored(tmp_path / "new.npz", balls(1, 30, "new", size=12))]
    code, printed, _ = judge(capsys, *names, *OPTIONS, "--data.cache", tmp_path / "cache", "--out", tmp_path / "out")
    assert code == 0
    assert (
        "GENERATED's volumes have 12 × 12 × 12 voxels and were resampled to 8 × 8 × 8, which changes their texture; "
        "--data.shape 12 compares them as they are"
    ) in printed


def folder(path, nodules, **columns):
    """A folder of cubes, as `gmmae generate` writes one, with arrays for files."""
    (path / "images").mkdir(parents=True)
    rows = [
        {"file": f"{name}.npy", **{column: values[i] for column, values in columns.items()}}
        for i, name in enumerate(nodules.names)
    ]
    for row, volume in zip(rows, nodules.values, strict=True):
        np.save(path / "images" / row["file"], volume)
    with (path / "nodules.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


REAL = balls(0, 60)
FILES = tuple(f"{name}.npy" for name in REAL.names)


def divided(seed):
    """The names of the training and of the held-out nodules of a folder."""
    return [[FILES[i] for i in part] for part in split(REAL.groups, [""] * 60, 26, seed)]


@pytest.fixture
def traced(tmp_path):
    """A folder of real nodules, and one of generated ones that names what they were made from; and options."""
    training, _ = divided(0)
    real = folder(tmp_path / "real", REAL, patient=REAL.groups)
    made = {
        "run": ["abc123"] * 30,
        "nearest": [training[i % 20] for i in range(30)],
        "shape_donors": [f"{training[i]} {training[33 - i]}" for i in range(30)],
        "texture_donors": [training[(7 * i) % 34] for i in range(30)],
    }
    generated = folder(tmp_path / "generated", balls(1, 30, "new"), **made)
    cache = ("--data.cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out"))
    return real, generated, (*OPTIONS, *cache, "--data.validation", "26")


def test_a_split_that_is_not_the_runs_is_noticed_by_the_donors(traced, capsys, no_page):
    real, generated, options = traced
    code, printed, error = judge(capsys, real, generated, "--split", "validation", "--data.seed", 1, *options)
    held_out = divided(1)[1]
    seen = [name for name in held_out if name in divided(0)[0]]
    assert seen
    assert (code, printed) == (2, "")
    assert error.splitlines()[-1] == (
        f"error: REAL's held-out nodules must be new to the generator; GENERATED's nodules.csv names {len(seen)} of the 26 as "
        f"its sources, such as {', '.join(sorted(seen)[:3])} …: divide REAL as the run abc123 did, with its "
        "--data.validation and --data.seed, or --config RUN/config.toml"
    )
    code, printed, _ = judge(capsys, real, generated, "--split", "validation", *options)
    assert code == 0
    assert "rejects copies by distances of these same validation nodules" in printed


def test_donors_among_real_nodules_are_noticed_without_a_split(traced, tmp_path, capsys, no_page):
    real, generated, options = traced
    code, _, error = judge(capsys, real, generated, *options)
    assert code == 2
    assert "REAL's nodules must be new to the generator; GENERATED's nodules.csv names 34 of the 60" in error
    # Names alone are no proof where the training set is at hand and has them too.
    train = folder(tmp_path / "train", REAL._replace(values=balls(2, 60).values), patient=[f"other{i}" for i in range(60)])
    assert judge(capsys, real, generated, "--train", train, *options)[0] == 0


def test_the_configuration_of_another_run_is_refused_and_the_runs_own_divides_as_it_did(traced, tmp_path, capsys, no_page):
    real, generated, options = traced
    config = tmp_path / "run" / "config.toml"
    config.parent.mkdir()
    config.write_text(to_toml(changed(small(), data__seed=0, data__validation=26, data__crop="whole")))
    counts = ("devices", "processes", "global_batch", "device_batch", "padding", "steps_per_epoch", "parameters",
              "train_samples", "validation_samples", "batch_size", "wanted_batch")  # fmt: skip
    record = Record("def456", "strong", 0, device_kind="cpu", oversubscribed=False, learning_rate=0.1, target=0.0,
                    **dict.fromkeys(counts, 1))  # fmt: skip
    (tmp_path / "run" / "record.json").write_text(to_json(record))
    options = (*options[2:], "--config", str(config), "--split", "validation")
    code, _, error = judge(capsys, real, generated, *options)
    assert code == 2
    assert (
        "--config must be of the run that made GENERATED, abc123 in its nodules.csv; got "
        f"{config}, of the run def456: name the config.toml of the other"
    ) in error
    table = generated / "nodules.csv"
    table.write_text(table.read_text().replace("abc123", "def456"))
    assert judge(capsys, real, generated, *options)[0] == 0


def test_real_nodules_among_the_generated_ones_are_refused(traced, tmp_path, capsys):
    real, _, options = traced
    options = (*options, "--train", folder(tmp_path / "train", balls(2, 60, "trained")))
    named = folder(tmp_path / "named", balls(1, 30, "new")._replace(names=(*(f"new{i}" for i in range(28)), "real3", "real5")))
    code, _, error = judge(capsys, real, named, *options)
    assert code == 2
    assert "GENERATED must hold new nodules; 2 of its 30 have names of REAL's, such as real3.npy, real5.npy: take" in error
    voxels = balls(1, 30, "new").values
    voxels[4] = REAL.values[7]
    copied = folder(tmp_path / "copied", balls(1, 30, "new")._replace(values=voxels))
    code, _, error = judge(capsys, real, copied, *options)
    assert code == 2
    assert "REAL must share no nodule with GENERATED; 1 of its 60" in error
    assert "such as real7.npy, which is new4.npy" in error
