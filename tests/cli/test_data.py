"""`gmmae data prepare`, `inspect` and `synth`."""

import re
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction.prepare import load
from gmmae.data.settings import DataConfig
from tests.commands import last_refusal, lines_of

NAMES = ["first", "second", "second_too"]


@pytest.fixture
def options(tmp_path):
    """The options that name three cubes in one file."""
    volumes = np.random.default_rng(0).integers(-1000, 400, (3, 16, 16, 16)).astype(np.int16)
    np.savez(tmp_path / "all.npz", volumes=volumes, masks=volumes > 300, names=NAMES, diameter_mm=[5.0, 6.0, 7.0])
    words = ["--data.source", "cubes", "--data.root", tmp_path / "all.npz", "--data.cache", tmp_path / "cache"]
    return [*words, "--data.workers", 1]


def inspect(capsys, which, out, options):
    shown = lines_of(capsys, "data", "inspect", which, "--out", out, *options)
    assert out.read_bytes().startswith(b"\x89PNG")
    return {line[:10].strip(): line[11:] for line in shown}


def test_prepare_prints_the_summary_and_where_the_files_are(capsys, options, tmp_path):
    prepare = ("data", "prepare", *options, "--out", tmp_path / "out", "--refresh")
    lines_of(capsys, *prepare)
    *text, took, summary, sheet = lines_of(capsys, *prepare)  # an earlier result is replaced
    assert text[0] == "3 nodules in 3 groups: 3 without category"
    assert took.startswith("extracted in ")
    assert [summary, sheet] == [str(tmp_path / "out" / name) for name in ("summary.json", "contact_sheet.png")]
    assert Path(sheet).read_bytes().startswith(b"\x89PNG")
    *again, took, _, _ = lines_of(capsys, "data", "prepare", *options)
    assert again == text
    assert took.startswith("found in the cache: ")
    wide = lines_of(capsys, "data", "prepare", *options, "--data.window", -1200, 600)
    assert wide[-1].endswith("contact_sheet_-1200_600.png")


def test_inspect_shows_one_nodule(capsys, options, tmp_path):
    for which, index in {"0": 0, "2": 2, "second": 1, "too": 2, "fir": 0}.items():
        facts = inspect(capsys, which, tmp_path / "nodule.png", options)
        assert {
            "nodule": f"{index}  {NAMES[index]}",
            "diameter": f"{5 + index:.2f} mm",
            "from": f"volumes[{index}]",
            "cube": "16 × 16 × 16 voxels of 1.00 mm",
            "columns": f"diameter_mm: {5 + index:.1f}, names: {NAMES[index]}",
        }.items() <= facts.items()
        assert facts["mask"].endswith(" voxels")
        assert facts["filled"].startswith("0.0%")


@pytest.mark.parametrize("shape", [(8, 12, 16), (12, 16), (16,)])
def test_data_in_their_own_unit_are_shown_in_it(capsys, options, tmp_path, shape):
    volumes = np.random.default_rng(0).uniform(0, 1, (3, *shape))
    np.savez(tmp_path / "all.npz", volumes=volumes)
    options += ["--data.shape", *shape, "--data.ndim", len(shape), "--data.window", 0, 1]
    assert any(line.startswith("values: ") for line in lines_of(capsys, "data", "prepare", *options))
    facts = inspect(capsys, "1", tmp_path / "nodule.png", options)
    assert facts["values"].startswith(f"{volumes[1].min():g} to {volumes[1].max():g}, mean {volumes[1].mean():.4g}")
    assert facts["cube"].startswith(" × ".join(map(str, shape)))


@pytest.mark.parametrize(
    ("command", "out", "message"),
    [
        ("inspect 3", "x.png", "'3', which is in 0 names: none"),
        ("inspect sec", "x.png", "a number below 3, .*'sec', which is in 2 names: second, second_too"),
        ("prepare", "file", "--out must be a folder that is new or empty"),
        ("prepare", ".", "which holds something else"),
        ("inspect 0", "file/x.png", "--out must be a file that can be written"),
        ("inspect 0", "all.npz", "which holds something else"),
    ],
)
def test_what_is_no_nodule_or_no_place_is_named_and_kept(capsys, options, tmp_path, command, out, message):
    (tmp_path / "file").write_text("")
    before = (tmp_path / "all.npz").read_bytes()
    assert re.search(message, last_refusal(capsys, "data", *command.split(), *options, "--out", tmp_path / out))
    assert (tmp_path / "all.npz").read_bytes() == before


def test_synthetic_scans_can_be_prepared_and_their_nodules_are_in_the_middle(capsys, tmp_path):
    scans, size = tmp_path / "scans", ("--slices", 60, "--pixels", 128)
    text = lines_of(capsys, "data", "synth", scans, "--scans", 2, "--nodules", 2, 2, "--compressed", *size)
    assert text[0].startswith("2 scans of 60 × 128 × 128 voxels with 4 nodules, ")
    assert len(list(scans.glob("subset*/*.zraw"))) == 2
    config = DataConfig(source="luna16", root=str(scans), cache=str(tmp_path / "cache"), workers=1, crop="2x")
    for cube in load(config, [].append).values:
        # The edge is two diameters, so the middle quarter of it lies well within the nodule, the outer layers in the lung.
        assert cube[6:10, 6:10, 6:10].mean() > np.median(cube) + 100
