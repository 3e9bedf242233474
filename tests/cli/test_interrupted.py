"""Every command that writes, interrupted at several moments and given again: its files are those of an undisturbed call."""

import os
import re
import shutil
import zipfile

import numpy as np
import pytest

from gmmae.config.toml import to_toml
from gmmae.generation.judging import two_samples
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.runs import SweepDir
from tests.commands import run_gmmae
from tests.generation.nodules import balls
from tests.interrupting import Killed, full_disk, killed, moments, tree
from tests.small import small
from tests.sweeps import reach


@pytest.fixture(scope="module")
def places(mixture_run, lattice_run, tmp_path_factory):
    """What the commands need: two runs, nodules, scans and a sweep; and the folder that they write to."""
    root = tmp_path_factory.mktemp("places")
    shutil.copytree(lattice_run.folder, root / "run")
    shutil.copytree(mixture_run.folder, root / "cubic_run")
    for name, seed in (("real", 0), ("generated", 1)):
        nodules = balls(seed, 60, name)
        known = {key: getattr(nodules, key) for key in ("masks", "names", "groups", "categories")}
        np.savez(root / f"{name}.npz", volumes=nodules.values, **known)
    assert run_gmmae("data", "synth", root / "scans", "--scans", 1, "--pixels", 96, "--slices", 60, "--nodules", 1, 1) == 0
    assert run_gmmae("generate", root / "run", "--out", root / "before", "--count", 2) == 0
    sweep = SweepConfig(
        run=small(stop__target=0.0016384, parallel__devices="all"), scaling=("strong",), devices=(1, 2), mode="measured"
    )
    for devices in sweep.devices:
        reach(sweep, root / "sweep", RunKey("strong", devices, 0), 3)
    SweepDir(root / "sweep").config.write_text(to_toml(sweep))
    return root


NODULES = "--data.root real.npz --data.source cubes --data.shape 8 --data.crop whole --data.workers 1 --data.cache cache"
COMMANDS = {
    "generate": "generate run --out OUT/made --count 3 --insert-into scans",
    "insert": "insert before scans --out OUT/made --size 8 --cache cache",
    "describe": "describe cubic_run real.npz --out OUT/made --data.cache cache",
    "judge": f"judge real.npz generated.npz --out OUT/made {NODULES}",
    "evaluate": "evaluate run --out OUT/made.csv",
    "export": "export run --out OUT/made.zip",
    "synth": "data synth OUT/made --scans 2 --pixels 64 --slices 40",
    "inspect": f"data inspect 0 --out OUT/made.png {NODULES}",
    "prepare": f"data prepare --out OUT {NODULES}",
    "report": "report OUT/sweep",
}
"""A word that is the name of something in `places` stands for its path, and OUT for the folder that is written to."""
SLOW = ("describe", "judge")
SEVERAL = ("prepare", "report")
"""Commands that write several things, each whole; the others write one."""


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(two_samples, "REPETITIONS", 1)
    monkeypatch.setattr("gmmae.generation.insertion.insert.SHOWN", 1)

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)  # as after a StorageError


def files(folder):
    """Those of a folder, without hidden ones and what depends on the clock: TensorBoard's files, dates in a ZIP archive."""
    found = {}
    for name, data in tree(folder).items():
        if name.endswith(".zip"):
            with zipfile.ZipFile(folder / name) as archive:
                data = [archive.read(part) for part in ("load.py", "meta.json", "params.npz")]
        if not name.startswith("."):
            found[re.sub(r"tfevents.*", "tfevents", name)] = b"" if "tfevents" in name else data
    return found


def attempt(name, words, capsys):
    try:
        code = run_gmmae(*words)
    except SystemExit as end:
        code = end.code
    except Killed:
        code = 137
    return code, capsys.readouterr().err.splitlines()[-1:]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in COMMANDS])
def test_a_command_that_was_interrupted_may_be_given_again(name, places, tmp_path, capsys):
    out = tmp_path / "out"

    def begin():
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        if name == "report":
            shutil.copytree(places / "sweep", out / "sweep")

    known = {path.name: path for path in places.iterdir()} | {"cache": tmp_path / "cache", "OUT": out}
    words = [str(known.get(word, word.replace("OUT", str(out)))) for word in COMMANDS[name].split()]
    begin()
    with moments(out) as undisturbed:
        assert run_gmmae(*words) == 0, capsys.readouterr().err
    wanted, count = files(out), undisturbed.count
    assert count >= 2
    begin()
    before = files(out)
    holds = "the same command goes on where it was" if name == "prepare" else "the same command begins again"
    with moments(out, max(1, count - 2)):
        code, said = attempt(name, words, capsys)
    assert code == 130
    if "is written, and whole" in said[0]:
        assert name in SEVERAL or files(out) == wanted
        begin()
    else:
        assert said[0].endswith(holds)
        assert name in SEVERAL or (files(out) == before and "nothing was written" in said[0])
    with moments(out, 2, full_disk, for_good=True):
        code, said = attempt(name, words, capsys)
    assert (code, len(said)) == (74, 1)
    assert "No space left on device" in said[0]
    assert name in SEVERAL or files(out) == before
    with moments(out, max(1, count // 2), killed, for_good=True):
        assert attempt(name, words, capsys)[0] == 137
    assert run_gmmae(*words) == 0
    assert files(out) == wanted
