"""A run knows its data: what changed is refused by name, what moved is the same, and what was seen is not called unseen."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import gmmae
from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.data.synthetic.volumes import synthetic_nodules
from gmmae.multihost.distributed import DisagreementError, Group
from gmmae.system.errors import InputError
from gmmae.training import fingerprint
from gmmae.training.workdir import WorkDir
from gmmae.workloads import registry
from gmmae.workloads.interface import Splits
from tests.commands import last_refusal, rows, run_gmmae
from tests.small import EXACT, finish, losses, small
from tests.volume_sources import from_source

VOLUMES = synthetic_nodules(28, (8, 8, 8), 0).values
SERIES = np.array([f"1.2.{i}" for i in range(28)])


def written(path, volumes=VOLUMES, **more):
    path.parent.mkdir(exist_ok=True)
    np.savez(path, volumes=volumes, **more)
    return path


def on_file(path, **changes):
    return small(data__source="cubes", data__root=str(path), data__cache=str(path.parent / "cache"), data__workers=1, **changes)


def train(config, workdir, epochs=1):
    return finish(changed(config, stop__max_epochs=epochs), workdir)[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A file of volumes, and a run of an epoch on it."""
    folder = tmp_path_factory.mktemp("trained")
    path = written(folder / "nodules.npz", seriesuid=SERIES)
    train(on_file(path), folder / "run")
    return path, folder / "run"


@pytest.fixture
def copied(trained, tmp_path):
    """The same elsewhere, for a test that changes them."""
    shutil.copytree(trained[1], tmp_path / "run")
    return written(tmp_path / "nodules.npz"), tmp_path / "run"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda volumes: volumes + 50, "train samples was"),
        (lambda volumes: volumes[:27], 'number of train samples was "22, 22 of them hashed", now "21, 21 of them hashed"'),
        (lambda volumes: volumes[::-1], "train samples was"),
    ],
)
def test_a_run_is_neither_resumed_nor_evaluated_on_changed_data(copied, capsys, change, words):
    path, workdir = copied
    (workdir / "config.toml").write_text(to_toml(on_file(path)))
    written(path, change(VOLUMES))
    before = (workdir / "record.json").read_text()
    with pytest.raises(InputError) as caught:
        train(on_file(path), workdir, epochs=2)
    refused = f"data and workload must be those that {workdir} began with; got others, where"
    assert refused in str(caught.value)
    assert words in str(caught.value)
    assert refused in last_refusal(capsys, "evaluate", workdir)
    assert (workdir / "record.json").read_text() == before


def test_moved_data_are_the_same_and_another_file_of_that_name_is_not(trained, tmp_path, monkeypatch, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    written(first / "nodules.npz")
    written(second / "nodules.npz", VOLUMES[::-1])
    monkeypatch.chdir(first)
    config = changed(on_file(trained[0]), data__root="nodules.npz")
    train(config, tmp_path / "run")
    monkeypatch.chdir(second)
    assert run_gmmae("evaluate", tmp_path / "run") == 0  # of the file in the first folder
    assert "on 6 validation samples\n" in capsys.readouterr().out
    with pytest.raises(InputError, match="train samples was"):
        train(config, tmp_path / "run", epochs=2)
    moved = written(tmp_path / "moved" / "nodules.npz")
    (first / "nodules.npz").unlink()
    train(on_file(moved), tmp_path / "run", epochs=2)
    train(on_file(moved), tmp_path / "whole", epochs=2)
    assert losses(WorkDir(tmp_path / "run").read_rows()) == losses(WorkDir(tmp_path / "whole").read_rows())


def test_a_run_without_its_fingerprint_goes_on_uncompared(copied):
    path, workdir = copied
    (workdir / fingerprint.FILE).unlink()
    written(path, VOLUMES[::-1])
    assert train(on_file(path), workdir, epochs=2).epochs == 2


def test_samples_are_training_validation_or_unseen_however_they_are_named_and_cut(trained, tmp_path, capsys):
    path, workdir = trained
    volumes = np.concatenate([VOLUMES[::-1], VOLUMES[:3] + 100])
    other = written(tmp_path / "other_name.npz", volumes)
    cut = {"spacing_mm": np.full((31, 3), 0.7), "diameter_mm": np.linspace(3, 5, 31)}
    other_cut = written(tmp_path / "other_cut.npz", volumes.astype(np.float32), **cut)
    cut_anew = written(tmp_path / "cut_anew.npz", VOLUMES[::-1] * 0.9, seriesuid=SERIES[::-1])
    split = registry.build(on_file(path)).load().names
    assert split is not None
    for i, options in enumerate(
        (
            ["--data.seed", 3],
            ["--data.root", other],
            ["--data.root", other_cut, "--data.padding", "replicate"],
            ["--data.root", cut_anew],
        )
    ):
        out = tmp_path / f"{i}.csv"
        assert run_gmmae("evaluate", workdir, "--out", out, *options) == 0
        printed = capsys.readouterr().out
        assert "22 train" in printed.splitlines()[0]
        assert "6 validation" in printed.splitlines()[0]
        kinds = {row["name"]: row["split"] for row in rows(out)}
        numbers = sorted(int(name.rpartition("_")[2]) for name, kind in kinds.items() if kind == "validation")
        own = sorted(int(name.rpartition("_")[2]) for name in split["validation"])
        assert numbers == (sorted(27 - number for number in own) if i else own)
        assert sum(kind == "unseen" for kind in kinds.values()) == (0, 3, 3, 0)[i]


def test_what_a_run_before_was_trained_on_is_no_validation_unless_allowed(trained, tmp_path, capsys):
    path, first = trained
    config = on_file(path, data__seed=3, init_from=str(first))
    with pytest.raises(InputError, match=rf"must be new to what a run begins with; got [1-6] of 6 that the model of {first} "):
        train(config, tmp_path / "second")
    assert not (tmp_path / "second").exists()
    seen = train(changed(config, data__allow_seen=True), tmp_path / "second").data["seen validation samples"]
    assert 1 <= int(seen) <= 6
    assert run_gmmae("evaluate", tmp_path / "second") == 0
    assert f"{seen} of 6 validation samples had been trained on before" in capsys.readouterr().out
    # The next run has the samples of the second one, whose origin has seen some for validation.
    with pytest.raises(InputError, match=f"got {seen} of 6"):
        train(changed(config, init_from=str(tmp_path / "second")), tmp_path / "third")
    assert "seen validation samples" not in train(on_file(path, init_from=str(first)), tmp_path / "same").data
    with pytest.raises(InputError, match=f"got {seen} of 6"):  # the same nodules, and none is equal
        train(changed(config, data__window=(-900.0, 400.0)), tmp_path / "fourth")
    # A run that was killed before its first checkpoint begins again.
    train(changed(config, init_from=None), killed := tmp_path / "killed")
    shutil.rmtree(killed / "checkpoints")
    (killed / "record.json").unlink()
    with pytest.raises(InputError, match=f"got {seen} of 6"):
        train(config, killed)


def test_arrays_that_nothing_reads_are_named(tmp_path, capsys):
    np.savez(tmp_path / "nodules.npz", volumes=VOLUMES, pair=np.zeros((28, 2)), split=np.zeros(28))
    registry.build(on_file(tmp_path / "nodules.npz")).load()
    said = capsys.readouterr().err
    assert "nothing reads split: the split follows from data.validation" in said
    assert "nothing reads pair" in said


def test_random_numbers_are_the_same_whatever_the_variables_of_jax_say(tmp_path, whole):
    expected = whole(**EXACT, stop__max_epochs=5).record.best_val_loss
    jax.config.update("jax_random_seed_offset", 5)
    with (
        jax.default_prng_impl("rbg"),
        jax.threefry_partitionable(False),
        jax.numpy_dtype_promotion("strict"),
        jax.disable_jit(),
    ):
        assert train(small(**EXACT), tmp_path, epochs=5).best_val_loss == expected


def test_a_changed_file_of_a_workload_is_another_workload_and_a_model_of_it_comes_with_a_warning(trained, tmp_path, capsys):
    path = tmp_path / "volumes.py"
    config = from_source(path, on_file(trained[0]))
    assert train(config, tmp_path / "run").data["number of train samples"] == "22, 10 of them hashed"
    gmmae.load(tmp_path / "run")
    assert "warning" not in capsys.readouterr().err
    path.write_text(path.read_text() + "# changed")
    gmmae.load(tmp_path / "run")
    assert f"{path} is no longer the file that {tmp_path / 'run'} was trained with" in capsys.readouterr().err
    for known in (registry.load, registry.file_hash):  # as in a new process
        known.cache_clear()
    config = changed(config, settings=registry.load(str(path)).Config(**vars(config.settings)))
    with pytest.raises(InputError, match="where workload file was"):
        train(config, tmp_path / "run", epochs=2)


class Two(Group):
    """This process, and another one with values of its own."""

    def __init__(self, other):
        self._other = other

    def all_gather(self, value):
        return [value, self._other]


def test_data_are_compared_to_the_last_bit_and_not_by_the_names_of_groups():
    data = registry.build(small()).load()
    same = fingerprint.of(small(), data)
    density, groups = data.train.copy(), data.groups
    assert groups is not None
    renamed = {split: [f"new {name}" for name in names] for split, names in groups.items()}
    assert fingerprint.of(small(), dataclasses.replace(data, groups=renamed)) == same
    joined = {split: ["one"] * len(names) for split, names in groups.items()}
    density.flat[-1] = np.nextafter(density.flat[-1], np.float32(9))
    for changes, part in (({"train": density}, "train samples"), ({"groups": joined}, "train groups")):
        other = fingerprint.of(small(), dataclasses.replace(data, **changes))
        with pytest.raises(DisagreementError, match=rf"got {part} [0-9a-f]{{12}} on process 0 and"):
            Two(other.digests).assert_equal(same.digests)


def test_labels_count_and_a_sample_is_known_without_them():
    images, labels = np.arange(48.0).reshape(3, 4, 4), np.array([0, 1, 0])
    one = fingerprint.of(small(), Splits({"image": images, "label": labels}, images))
    other = fingerprint.of(small(), Splits({"image": images, "label": 1 - labels}, images))
    assert one.train == other.train == one.validation
    assert [name for name in one.digests if one.digests[name] != other.digests[name]] == ["train labels or other arrays"]


def test_groups_and_origins_of_whole_numbers_are_the_same_as_text_and_as_floats(monkeypatch, capsys):
    values, names = np.arange(6.0).reshape(3, 2), {"train": [1, "2", b"3"], "validation": [np.float64(1), 2.0, "3"]}
    data = Splits(values, values + 9, groups=names, origins=names)
    monkeypatch.setattr(registry, "BUILT_IN", {})  # which divide no group
    monkeypatch.setattr(registry, "file_hash", str)
    found = fingerprint.of(small(), data)
    assert [name.split()[1] for name in found.train] == [name.split()[1] for name in found.validation] == ["1", "2", "3"]
    assert "groups of samples are in training and in validation: 3, such as 1" in capsys.readouterr().err
