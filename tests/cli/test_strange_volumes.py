"""Other people's volumes through the commands: the right result, or one line that names the place."""

import csv
import io
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

import jax
import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.config.schema import CheckpointConfig, LogConfig, changed
from gmmae.config.toml import to_toml
from gmmae.training import compilation
from gmmae.workloads import contract, registry
from gmmae.workloads.configuration import read_config
from tests import volume_folders as folders
from tests.commands import run_gmmae
from tests.volume_folders import Case
from tests.workloads import test_segmentation as segmentation


@pytest.fixture(scope="module")
def unet(tmp_path_factory):
    """A configuration of a tiny U-Net for one epoch."""
    config = segmentation.small(
        data__source="cubes",
        stop__max_epochs=1,
        model__features=(2,),
        checkpoint=CheckpointConfig(every_epochs=1),
        log=LogConfig(tensorboard=False, figure_epochs=(), figure_samples=1),
    )
    path = tmp_path_factory.mktemp("config") / "unet.toml"
    path.write_text(to_toml(config))
    return path


def command(*words):
    """Exit code, standard output and error of `gmmae` with these words."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
        code = run_gmmae(*words)
    return code, out.getvalue(), error.getvalue()


def train(unet, root, workdir, *options):
    return command("train", "--config", unet, "--data.root", root, "--workdir", workdir, *options)


def refused(answer):
    """The one line of an error."""
    code, _, error = answer
    assert code == 2, error
    lines = [line for line in error.splitlines() if " scans read in " not in line]
    assert [line[:7] for line in lines] == ["error: "], error
    return error


def samples(config, root):
    """Returns the training and validation samples of a segmentation of a folder."""
    data = registry.build(changed(read_config(config), data__root=str(root))).load()
    return jax.tree.leaves((data.train, data.validation))


def untrained_losses(path, root, **changes):
    """Returns the validation losses of a segmentation of a folder before training."""
    config = changed(read_config(path), data__root=str(root), **changes)
    workload = registry.build(config)
    validation = compilation.cast(config, workload.load().validation)
    keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(validation)[0]))
    params = jax.jit(workload.init)(jax.random.key(0))
    return jax.jit(partial(contract.losses, workload))(params, validation, keys)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return folders.write(tmp_path_factory.mktemp("sound") / "cubes")


def prepared(root, tmp_path):
    """Exit code, standard output and error of `data prepare`, with a cache of its own."""
    name = f"cache{len(list(tmp_path.glob('cache*')))}"
    return command("data", "prepare", *PREPARE, "--data.root", root, "--data.cache", tmp_path / name)


PREPARE = ("--data.source", "cubes", "--data.crop", "8mm", "--data.workers", 1, "--data.scan-time-limit-s", "none")


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_on_another_grid_lies_where_its_geometry_says(unet, sound, tmp_path, turned):
    """The same voxels of the world, in another order or from another first voxel: the samples are the same."""

    def spoil(made: Case, _: int) -> None:
        name = str(made.row[0])
        sitk.WriteImage(folders.image(made.values), str(tmp_path / "cubes" / "images" / name))
        if turned:  # rows and columns run backwards, from the opposite corner
            last = folders.world((0, folders.SHAPE[1] - 1, folders.SHAPE[2] - 1))
            mask = folders.image(made.mask[:, ::-1, ::-1].copy(), last, direction=(-1, 0, 0, 0, -1, 0, 0, 0, 1))
        else:
            mask = folders.image(np.roll(made.mask, (2, 3), (1, 2)), folders.world((0, -2, -3)))
        sitk.WriteImage(mask, str(tmp_path / "cubes" / "masks" / name))

    root = folders.write(tmp_path / "cubes", spoil=spoil)
    for array, expected in zip(samples(unet, root), samples(unet, sound), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("elsewhere", "must overlap its volume"),
        ("turned", "must hold its nodule's centre, ("),
        ("slice", "must hold its nodule"),
    ],
)
def test_a_mask_that_does_not_reach_its_nodule_is_refused(unet, tmp_path, kind, text):
    root, ball = folders.write(tmp_path / "cubes"), folders.case(1).mask
    mask = {
        "elsewhere": folders.image(ball, (0.0, 0.0, 0.0)),
        "turned": folders.image(ball, direction=(-1, 0, 0, 0, -1, 0, 0, 0, 1)),
        "slice": folders.image(ball)[:, :, :1],
    }[kind]
    sitk.WriteImage(mask, str(root / "masks" / "n1.mha"))
    text = f"n1.mha (nodules.csv line 3): the mask n1.mha: {text}"
    assert text in refused(train(unet, root, tmp_path / "run"))
    code, printed, _ = prepared(root, tmp_path)
    assert code == 0
    assert "1 lost to faults" in printed
    assert text in printed


@pytest.mark.parametrize("change", [str.upper, lambda head: head.replace("coord", "Coord ")])
def test_columns_are_known_in_any_case_and_with_spaces(sound, tmp_path, change):
    root = folders.write(tmp_path / "cubes")
    head, _, rest = (root / "nodules.csv").read_text().partition("\n")
    (root / "nodules.csv").write_text(f"{change(head)}\n{rest}")
    assert prepared(root, tmp_path)[1].splitlines()[:2] == prepared(sound, tmp_path)[1].splitlines()[:2]


def test_texts_of_an_npz_may_be_bytes(tmp_path):
    made = [folders.case(i) for i in range(4)]
    arrays = {"volumes": np.stack([each.values for each in made]), "spacing_mm": np.array([folders.SPACING] * 4)}
    for name in (b"n", b"\xff"):
        names, groups = np.array([name + bytes([48 + i]) for i in range(4)]), np.array([b"P0", b"P0", b"P1", b"P1"])
        np.savez(tmp_path / "all.npz", allow_pickle=False, **arrays, names=names, groups=groups)
        answer = prepared(tmp_path / "all.npz", tmp_path)
        if name == b"n":
            assert answer[1].startswith("4 nodules in 2 groups")
        else:
            assert "all.npz: names must be text; got bytes that are no UTF-8" in refused(answer)


def test_a_centre_that_is_not_the_masks_is_refused(unet, tmp_path):
    def spoil(made: Case, number: int) -> Case:
        corner = folders.world((0, 0, 0))
        return made._replace(row=[*made.row[:2], *corner, 4.0]) if number == 1 else made

    root = folders.write(tmp_path / "cubes", spoil=spoil)
    error = refused(train(unet, root, tmp_path / "run", "--data.jitter", 0))
    assert "n1.mha (nodules.csv line 3): the mask must have a voxel within 8 samples around the centre; it has none" in error
    error = refused(train(unet, root, tmp_path / "run", "--data.shape", 4, "--data.jitter", 9))
    assert "n0.mha (nodules.csv line 2): a crop must always hold a voxel of the volume; data.jitter = 9 may move" in error


def test_an_undefined_dice_is_left_out_of_the_mean(unet, tmp_path):
    """Nothing is found in slices that are even, in the middle of the window: each mean is over the others."""
    root = folders.write(
        tmp_path / "cubes", spoil=lambda made, i: made._replace(values=np.where(made.mask, 200 + i, -300).astype(np.int16))
    )
    options = ("--data.empty-slices", "--data.validation", 2)
    assert train(unet, root, tmp_path / "run", *options)[0] == 0
    code, printed, _ = command("evaluate", tmp_path / "run")
    assert code == 0
    with (tmp_path / "run" / "evaluation.csv").open(newline="") as file:
        each = np.array([float(row["dice"]) for row in csv.DictReader(file)])
    with (tmp_path / "run" / "history.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert 0 < np.isnan(each).sum() < len(each)
    assert float(row["val_dice"]) == pytest.approx(np.nanmean(each), rel=1e-5)
    (line,) = [line for line in printed.splitlines() if line.startswith("dice ")]
    assert float(line.split()[1]) == pytest.approx(np.nanmean(each), rel=1e-5)


def test_segmentation_keeps_values_of_another_unit(unet, sound, tmp_path):
    shares = folders.write(tmp_path / "shares", spoil=lambda made, _: made._replace(values=(made.values + 1000) / 1400.0))
    losses = untrained_losses(unet, shares, data__window=(0.0, 1.0))
    np.testing.assert_allclose(losses, untrained_losses(unet, sound), rtol=1e-5)  # other units round otherwise


def test_a_volume_below_the_window_is_named(tmp_path):
    def spoil(made: Case, number: int) -> Case:
        return made._replace(values=made.values * 0 - 1024) if number == 2 else made

    root = folders.write(tmp_path / "cubes", spoil=spoil)
    options = (*PREPARE, "--data.root", root, "--data.cache", tmp_path / "cache", "--workdir", tmp_path / "run")
    error = refused(command("train", "--config", "quickstart", *options))
    assert "n2.mha (nodules.csv line 4)" in error


def test_scans_taken_for_cubes_and_cubes_taken_for_scans_are_told_their_source(unet, tmp_path):
    scans = tmp_path / "scans"
    assert command("data", "synth", scans, "--scans", 2, "--slices", 20, "--pixels", 32)[0] == 0
    words = ("train", "--config", "luna16_nodules", "--data.root", scans, "--workdir", tmp_path / "run")
    for more in ((), ("--data.csv", "annotations.csv")):
        assert "--data.source luna16" in refused(command(*words, *more))
    error = refused(train(unet, scans, tmp_path / "run"))
    assert "LUNA16" in error
    assert "--data.source luna16" not in error  # which a segmentation does not know
    folders.write(tmp_path / "headers", ending=".mhd")
    for path in (tmp_path / "headers" / "images").iterdir():
        path.rename(tmp_path / "headers" / path.name)
    for root in (folders.write(tmp_path / "cubes"), tmp_path / "headers"):
        assert "--data.source cubes" in refused(command("data", "prepare", "--data.source", "luna16", "--data.root", root))
