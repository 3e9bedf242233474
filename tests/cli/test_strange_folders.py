"""Other people's tables, headers and arrays through the commands: the faults that the fuzz test found.

Each is read rightly, or costs what it damages and is named with its place.
"""

import numpy as np
import pytest
import SimpleITK as sitk

from tests import volume_folders as folders
from tests.cli import test_strange_volumes
from tests.cli.test_strange_volumes import PREPARE, command, refused, train
from tests.volume_folders import Case

unet = test_strange_volumes.unet


def prepared(root, tmp_path, *options):
    """Exit code, standard output and error of `data prepare`, with a cache of its own."""
    name = f"cache{len(list(tmp_path.glob('cache*')))}"
    return command("data", "prepare", *PREPARE, "--data.root", root, "--data.cache", tmp_path / name, *options)


def rewrite(root, change, name="nodules.csv"):
    """Changes the text of a CSV."""
    path = root / name
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


@pytest.mark.parametrize("change", [str.upper, str.lower, lambda head: head.replace("coord", "Coord "), str.title])
def test_columns_are_known_in_any_case_and_with_spaces(tmp_path, change):
    root = folders.write(
        tmp_path / "cubes", count=6, spoil=lambda made, number: made._replace(row=two_of_a_patient(made, number))
    )
    wanted = prepared(root, tmp_path)[1].splitlines()[:2]
    assert wanted[0].startswith("6 nodules in 3 groups")
    rewrite(root, lambda text: change(text.partition("\n")[0]) + "\n" + text.partition("\n")[2])
    assert prepared(root, tmp_path)[1].splitlines()[:2] == wanted


def two_of_a_patient(made: Case, number: int) -> list[object]:
    return [made.row[0], f"P{number // 2}", *made.row[2:]]


def test_a_column_that_is_there_in_two_spellings_is_refused(tmp_path):
    root = folders.write(tmp_path / "cubes")
    rewrite(root, lambda text: text.replace("diameter_mm", "patient ").replace("coordX", "Patient"))
    assert "nodules.csv: columns must have different names; patient is there twice" in refused(prepared(root, tmp_path))


def test_a_volume_under_two_names_is_one_group(tmp_path):
    """Its two names could be on two sides of a split."""
    root = folders.write(tmp_path / "cubes")
    rows = [[made.row[0], f"Q{i}", *made.row[2:]] for i, made in enumerate(map(folders.case, range(4)))]
    (root / "images" / "link.mha").symlink_to("n2.mha")
    again = [["images/n1.mha", "R1", *rows[1][2:]], ["./n0.mha", "R2", *rows[0][2:]], ["link.mha", "R3", *rows[2][2:]]]
    folders.write_rows(root / "nodules.csv", [*rows, *again])
    code, printed, _ = prepared(root, tmp_path)
    assert code == 0
    assert printed.startswith("7 nodules in 4 groups")
    assert "share the" in printed


@pytest.mark.parametrize(
    ("diameter", "edge", "text"),
    [
        ("1e308", "1x", "a cube may cover at most"),
        ("1e308", "2x", "a cube's edge must be positive and finite; got inf mm"),
        ("1_0", "2x", "diameter_mm must be a finite number; got 1_0"),
        ("1e999", "2x", "diameter_mm must be a finite number; got 1e999"),
    ],
)
def test_a_diameter_that_is_none_costs_its_nodule(tmp_path, diameter, edge, text):
    root = folders.write(
        tmp_path / "cubes", spoil=lambda made, i: made._replace(row=[*made.row[:-1], diameter if i == 1 else 4])
    )
    code, printed, _ = prepared(root, tmp_path, "--data.crop", edge)
    assert code == 0
    assert "1 lost to faults" in printed
    (line,) = [line for line in printed.splitlines() if "line 3" in line]
    assert text in line


@pytest.mark.parametrize("change", [lambda v: (v + 300) / 700, lambda v: (v - v.mean()) / v.std(), lambda v: v // 100])
def test_voxels_that_are_scaled_are_no_hu(tmp_path, change):
    scaled = folders.write(
        tmp_path / "scaled", spoil=lambda made, _: made._replace(values=change(made.values.clip(-1000, 400)))
    )
    error = refused(prepared(scaled, tmp_path))
    assert "n0.mha (nodules.csv line 2): voxels must be HU; got " in error
    assert "which looks scaled already: if they have another unit, give data.window in it, such as -1 1" in error
    assert prepared(scaled, tmp_path, "--data.window", -10, 10)[0] == 0


def as_mhd(root):
    """The header of n1, in a folder of .mhd files."""
    folders.write(root, ending=".mhd")
    return root / "images" / "n1.mhd"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("ElementSpacing = ", "Spacing = "), "ElementSpacing in the header must give the spacing in mm; got none"),
        (("DimSize = 16 16 5", "DimSize = 16 16 4"), ".raw must hold the 2048 bytes that the header promises; n1.raw has 2560"),
    ],
)
def test_a_header_that_does_not_say_what_is_there_costs_its_scan(tmp_path, change, text):
    path = as_mhd(tmp_path / "cubes")
    path.write_text(path.read_text().replace(*change))
    code, printed, _ = prepared(tmp_path / "cubes", tmp_path)
    assert code == 0
    assert f"n1.mhd: {text}" in printed


def arrays(path, **changes):
    """One .npz of six volumes, with some arrays changed."""
    made = [folders.case(i) for i in range(6)]
    sound = {
        "volumes": np.stack([each.values for each in made]),
        "masks": np.stack([each.mask for each in made]),
        "names": np.array([f"n{i}" for i in range(6)]),
        "groups": np.array([f"P{i // 2}" for i in range(6)]),
        "diameter_mm": np.full(6, 4.0),
        "spacing_mm": np.array([folders.SPACING] * 6),
    }
    np.savez(
        path,
        **{name: change(sound[name]) for name, change in changes.items()},
        **{n: v for n, v in sound.items() if n not in changes},
    )
    return path


def second(value):
    def change(array):
        changed = array.astype(float)
        changed[1] = value
        return changed

    return change


@pytest.mark.parametrize("value", [1e30, 1e-30, 1e308])
def test_a_bad_volume_of_an_npz_costs_itself_only(tmp_path, value):
    name = "diameter_mm" if value == 1e308 else "spacing_mm"
    path = arrays(tmp_path / "all.npz", **{name: second(value)})
    code, printed, _ = prepared(path, tmp_path, "--data.crop", "2x")
    assert code == 0
    assert printed.startswith("5 nodules in 3 groups")
    assert "volumes[1]" in printed


@pytest.mark.parametrize("value", [b"4.6 mm", "4.6 mm"])
def test_diameters_in_words_are_refused_by_file_and_entry(tmp_path, value):
    path = arrays(
        tmp_path / "all.npz",
        diameter_mm=lambda d: np.array([*d.astype(str)[:2].tolist(), value, *["4"] * 3]).astype(type(value)),
    )
    error = refused(prepared(path, tmp_path))
    assert f"{path}: diameter_mm[2] must be a number; got 4.6 mm" in error


def test_texts_of_an_npz_may_be_bytes(tmp_path):
    path = arrays(tmp_path / "all.npz", names=lambda n: n.astype("S"), groups=lambda g: g.astype("S"))
    assert prepared(path, tmp_path)[1].startswith("6 nodules in 3 groups")
    (entry,) = (tmp_path / "cache0").glob("*/nodules.npz")
    with np.load(entry) as found:
        assert found["groups"].tolist() == ["P0", "P0", "P1", "P1", "P2", "P2"]
        assert found["names"].tolist() == [f"n{i}" for i in range(6)]
    arrays(path, names=lambda n: np.array([b"\xff", *n[1:].astype("S")]))
    assert f"{path}: names must be text; got bytes that are no UTF-8" in refused(prepared(path, tmp_path))


@pytest.mark.parametrize("key", ["volumes", "masks"])
def test_a_changed_byte_in_an_npz_is_refused(tmp_path, key):
    path = arrays(tmp_path / "all.npz")
    data = bytearray(path.read_bytes())
    data[data.index(f"{key}.npy".encode()) + 600] ^= 255
    path.write_bytes(data)
    assert "all.npz cannot be read as arrays: Bad CRC-32" in refused(prepared(path, tmp_path))


def test_python_objects_are_refused_by_their_file(tmp_path):
    path = arrays(tmp_path / "all.npz", names=lambda n: n.astype(object))
    assert "all.npz cannot be read as arrays: arrays must hold numbers or text" in refused(prepared(path, tmp_path))


def test_a_csv_with_a_header_alone_is_named(unet, tmp_path):
    root = folders.write(tmp_path / "cubes", count=0)
    for answer in (prepared(root, tmp_path), train(unet, root, tmp_path / "run")):
        assert f"{root / 'nodules.csv'}: must list a nodule; it has a header alone" in refused(answer)


def test_a_line_end_in_a_folders_name_makes_no_second_line(unet, tmp_path):
    (tmp_path / "a\nb").mkdir()
    (tmp_path / "a\nb" / "nodules.csv").write_text("")
    for answer in (prepared(tmp_path / "a\nb", tmp_path), train(unet, tmp_path / "a\nb", tmp_path / "run")):
        assert r"a\nb/nodules.csv: must have the column file" in refused(answer)


def test_a_name_that_is_too_long_is_no_reason_to_try_again(unet, tmp_path):
    root = folders.write(tmp_path / "cubes")
    for answer in (prepared(root / ("x" * 300), tmp_path), train(unet, root / ("x" * 300), tmp_path / "run")):
        assert "try the same command again" not in refused(answer)
    rewrite(root, lambda text: text.replace("n1.mha", "z" * 300))
    code, printed, _ = prepared(root, tmp_path)
    assert code == 0
    assert "nodules.csv line 3: file must be a name of at most 255 bytes; got zzz" in printed
    assert "nodules.csv line 3: file must be a name of at most 255 bytes" in refused(train(unet, root, tmp_path / "run"))


@pytest.mark.parametrize("kind", ["turned", "half", "slice"])
def test_a_mask_that_does_not_reach_its_nodule_is_refused(unet, tmp_path, kind):
    root = folders.write(tmp_path / "cubes")
    ball = folders.case(1).mask
    mask = {
        "turned": folders.image(ball, direction=(-1, 0, 0, 0, -1, 0, 0, 0, 1)),
        "half": folders.image(ball, spacing=tuple(mm / 2 for mm in folders.SPACING)),
        "slice": folders.image(ball)[:, :, :1],
    }[kind]
    sitk.WriteImage(mask, str(root / "masks" / "n1.mha"))
    text = "n1.mha (nodules.csv line 3): the mask n1.mha: must hold its nodule's centre, ("
    assert text in refused(train(unet, root, tmp_path / "run"))
    code, printed, _ = prepared(root, tmp_path)
    assert code == 0
    assert text in printed
