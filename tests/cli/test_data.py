import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from gmmae.config.schema import flatten
from gmmae.data.extraction.prepare import load
from gmmae.data.settings import DataConfig
from tests.commands import as_words, last_refusal, lines_of


@pytest.fixture
def config(tmp_path):
    rng = np.random.default_rng(0)
    volumes = rng.integers(-1000, 400, (3, 16, 16, 16)).astype(np.int16)
    names = ["first", "second", "second_too"]
    np.savez(tmp_path / "all.npz", volumes=volumes, masks=volumes > 300, names=names, diameter_mm=[5.0, 6.0, 7.0])
    return DataConfig(
        source="cubes", root=str(tmp_path / "all.npz"), cache=str(tmp_path / "cache"), workers=1, scan_time_limit_s=None
    )


def words(config):
    """The section as options."""
    return [
        word
        for key, value in flatten(config)
        if value != dict(flatten(DataConfig()))[key]
        for word in as_words(f"data.{key}", value)
    ]


def prepare(capsys, config, *options):
    return lines_of(capsys, "data", "prepare", *words(config), *options)


def inspect(capsys, config, which, out):
    shown = lines_of(capsys, "data", "inspect", which, "--out", out, *words(config))
    return {line[:10].strip(): line[11:] for line in shown}


def is_png(path):
    return Path(path).read_bytes().startswith(b"\x89PNG\r\n")


def test_prepare_prints_the_summary_and_where_the_files_are(capsys, config, tmp_path):
    text = prepare(capsys, config, "--out", tmp_path / "out")
    assert text[0] == "3 nodules in 3 groups: 3 without category"
    assert re.match("extracted in .* s: ", text[-3])
    assert text[-2:] == [str(tmp_path / "out" / name) for name in ("summary.json", "contact_sheet.png")]
    assert is_png(text[-1])
    again = prepare(capsys, config)
    assert again[:-3] == text[:-3]
    assert again[-3].startswith("found in the cache: ")
    assert "extracted in " in prepare(capsys, config, "--refresh")[-3]
    other = prepare(capsys, dataclasses.replace(config, window=(-1200.0, 600.0)))[-1]
    assert other.endswith("contact_sheet_-1200_600.png")
    assert again[-1].endswith("contact_sheet.png")


@pytest.mark.parametrize(("which", "index"), [("0", 0), ("2", 2), ("second", 1), ("too", 2), ("fir", 0)])
def test_inspect_shows_one_nodule(capsys, config, tmp_path, which, index):
    facts = inspect(capsys, config, which, tmp_path / "nodule.png")
    assert facts["nodule"] == f"{index}  {['first', 'second', 'second_too'][index]}"
    assert facts["diameter"] == f"{5 + index:.2f} mm"
    assert facts["from"] == f"volumes[{index}]"
    assert facts["cube"] == "16 voxels, 16.00 mm along each axis"
    assert facts["mask"].endswith(" voxels")
    assert facts["filled"].startswith("0.0%")
    assert is_png(tmp_path / "nodule.png")


@pytest.mark.parametrize(("size", "ndim"), [(16, 3), ((8, 12, 16), 3), ((12, 16), 2), (16, 1)])
def test_data_in_their_own_unit_are_shown_in_it(capsys, config, tmp_path, size, ndim):
    shape = DataConfig(shape=size, ndim=ndim).sample_shape
    volumes = np.random.default_rng(0).uniform(0, 1, (3, *shape))
    volumes[:, -1] = 1
    np.savez(tmp_path / "all.npz", volumes=volumes, masks=volumes > 0.5)
    config = dataclasses.replace(config, shape=size, ndim=ndim, window=(0.0, 1.0))
    text = prepare(capsys, config)
    assert sum(line.startswith("values: 1 % below 0.") for line in text) == 1
    assert text[-1].endswith("contact_sheet_0_1.png")
    assert is_png(text[-1])
    facts = inspect(capsys, config, "1", tmp_path / "nodule.png")
    low, high, mean = volumes[1].min(), volumes[1].max(), volumes[1].mean()
    assert facts["values"].startswith(f"{low:g} to {high:g}, mean {mean:.4g}, centre 0.")
    cube = "16 voxels, 16.00 mm along each axis" if size == 16 else f"{' × '.join(map(str, shape))} voxels of 1.00 mm"
    assert facts["cube"] == cube
    assert "HU" not in facts
    assert is_png(tmp_path / "nodule.png")


@pytest.mark.parametrize(
    ("command", "out", "message"),
    [
        ("inspect 3", "x.png", "'3', which is in 0 names: none"),
        ("inspect sec", "x.png", "a number below 3, .*'sec', which is in 2 names: second, second_too"),
        ("prepare", "file", "--out must be a folder that is new or empty, .*; got .*file"),
        ("prepare", ".", "which holds something else"),
        ("inspect 0", "file/x.png", "--out must be a place that can be written; got .*file"),
        ("inspect 0", "all.npz", "which holds something else"),
    ],
)
def test_what_is_no_nodule_or_no_place_is_named_and_kept(capsys, config, tmp_path, command, out, message):
    (tmp_path / "file").write_text("")
    before = (tmp_path / "all.npz").read_bytes()
    error = last_refusal(capsys, "data", *command.split(), *words(config), "--out", tmp_path / out)
    assert re.search(message, error)
    assert (tmp_path / "all.npz").read_bytes() == before


def test_earlier_results_are_replaced(capsys, config, tmp_path):
    for _ in range(2):
        inspect(capsys, config, "0", tmp_path / "nodule.svg")
        prepare(capsys, config, "--out", tmp_path / "sheet")


def test_synthetic_scans_can_be_prepared_and_their_nodules_are_in_the_middle(capsys, tmp_path):
    scans, size = tmp_path / "scans", ("--slices", 60, "--pixels", 128)
    text = lines_of(capsys, "data", "synth", scans, "--scans", 2, "--nodules", 2, 2, "--compressed", *size)
    assert text[0].startswith("2 scans of 60 × 128 × 128 voxels with 4 nodules, ")
    assert len(list(scans.glob("subset*/*.zraw"))) == 2
    config = DataConfig(source="luna16", root=str(scans), cache=str(tmp_path / "cache"), workers=1, crop="2x")
    assert prepare(capsys, config)[0].startswith("4 nodules in 2 groups: ")
    for cube in load(config, [].append).values:
        # The edge is two diameters, so the middle quarter of it lies well within the nodule, the outer layers in the lung.
        assert cube[6:10, 6:10, 6:10].mean() > np.median(cube) + 100
    assert "FOLDER must be a folder that is new or empty" in last_refusal(capsys, "data", "synth", scans, *size)
