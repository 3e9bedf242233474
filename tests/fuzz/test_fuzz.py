"""Every command ends on a damaged folder with the right result, or with one line that names the place."""

import os
import signal
import sys
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from gmmae.config.toml import to_toml
from gmmae.sweep.grid import run_keys
from tests import medmnist_files, small, sweeps, volume_folders
from tests.commands import run_gmmae
from tests.fuzz import array_cases, csv_cases, place_cases, run_cases, scan_cases, volume_cases
from tests.fuzz.calls import call, difference
from tests.fuzz.cases import Case, reads
from tests.generation import chests
from tests.generation.nodules import balls

MODULES = (csv_cases, volume_cases, scan_cases, array_cases, place_cases, run_cases)
CALLS = [(case, command) for module in MODULES for case in module.CASES for command in case.commands]


def write_sweep(path):
    """Writes a sweep of four runs."""
    config = replace(sweeps.GRID, scaling=("strong", "weak"), devices=(1, 2), seeds=(0,))
    for key in run_keys(config):
        sweeps.reach(config, path, key, 10)
    sweeps.add_step_times(path, 1, sweeps.STEPS, sweeps.PASSES)
    (path / "sweep.toml").write_text(to_toml(config), encoding="utf-8")


def write_npz(path, **arrays):
    """Writes a folder with one file of arrays."""
    path.mkdir()
    np.savez(path / "all.npz", **arrays)


def write_real(path):
    """Writes nodules by which generated ones are judged."""
    nodules = balls(0, 60)
    texts = {name: np.array(getattr(nodules, name)) for name in ("names", "groups", "categories")}
    write_npz(path, volumes=nodules.values, masks=nodules.masks, **texts)


def write_generated(path):
    """Writes nodules of a generator."""
    small.finish(GENERATOR, path.with_name("generator of them"))
    run_gmmae("generate", path.with_name("generator of them"), "--count", 30, "--out", path)


GENERATOR = small.small(**small.SMALL_LATTICE | {"data__samples": 40, "data__validation": 10})
CLEAN = {
    "cubes": volume_folders.write_cubes,
    "luna16": volume_folders.write_luna16,
    "npz": lambda path: write_npz(path, **volume_folders.arrays()),
    "medmnist": lambda path: medmnist_files.write(path / "nodulemnist3d.npz"),
    "chest": chests.write_scans,
    "real": write_real,
    "generated": write_generated,
    "nodules": lambda path: small.finish(small.small(stop__max_epochs=1), path),
    "generator": lambda path: small.finish(GENERATOR, path),
    "unet": lambda path: small.finish(small.changed(small.SMALL_SEGMENTATION, stop__max_epochs=1, model__features=(2,)), path),
    "sweep": write_sweep,
}
"""Functions that make the clean folders and runs."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The clean folders by their names, made on first use; and the results of well-formed ones by their changes."""
    root = tmp_path_factory.mktemp("shared")

    class Shared(dict):
        def __missing__(self, name):
            CLEAN[name](root / name)
            self[name] = root / name
            return self[name]

    return Shared()


PARAMS = [
    pytest.param(case, command, id=name, marks=() if quick else pytest.mark.slow)
    for case, command in CALLS
    if (name := f"{case.name} × {command}")
    for quick in [command == "prepare" or (command in ("segment", "sweep") and crc32(name.encode()) % 31 == 0)]
]


@pytest.fixture(autouse=True)
def limited():
    """A call that takes too long is interrupted, as by Ctrl-C."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("few_divisions")
@pytest.mark.parametrize(("case", "command"), PARAMS)
def test_a_command_reads_rightly_or_names_the_place(case, command, shared, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(os, "_exit", sys.exit)  # as after an error of the disk
    monkeypatch.setattr("gmmae.cli.evaluate.MAX_REFINED_VALUES", 0)  # `describe` refines
    monkeypatch.setattr("gmmae.cli.describe.MAX_SHOWN", 1)
    monkeypatch.setattr("gmmae.generation.insertion.insert.SHOWN", 1)
    expect = case.expect
    code, out, err, found = call(case, command, tmp_path / "case", shared, capfd)
    if code:
        *_, last = lines = [line for line in err.splitlines() if line.strip()] or [""]
        assert (code, last[:7]) == (expect.code, "error: "), err
        assert sum(line.startswith("error: ") for line in lines) == 1, err
        assert expect.names is not None, f"must be read: {last}"
        assert all(name in last for name in expect.names), f"{expect.names} must be in {last}"
        assert not any(noise in err for noise in ("Warning: ", "WARNING: In", "Traceback")), err
        return
    faults = []
    for like, says in ((expect.reads, ()), (expect.rest, expect.names)):
        if like is not None:
            key = case.base, command, like, case.renamed
            if key not in shared:
                clean = Case(case.base, "", like, reads(), [], renamed=case.renamed)
                shared[key] = call(clean, command, tmp_path / f"clean{len(faults)}", shared, capfd)
                assert shared[key][0] == 0, shared[key][2]
            unsaid = [name for name in says if name not in out + err]
            faults.append(difference(found, shared[key][3], expect.near) or " ".join(unsaid))
    assert "" in faults, f"read silently: {faults}"
