import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gmmae.data import luna16, processes
from gmmae.data.extract import Options
from gmmae.data.prepare import load
from gmmae.data.processes import WorkerError, extract_all
from gmmae.data.tasks import Task

OPTIONS = Options(16, "1.25x", "air")
PATCHED = "import os, sys, gmmae.data.processes as p; real = p.extract; p.extract = lambda t, o: {}; p.serve()"


@pytest.fixture
def tasks(luna_folder):
    return luna16.plan(luna_folder("abcd")).tasks


def names(results):
    return sorted(cube.item.name for result in results for cube in result.cubes)


@pytest.mark.parametrize("workers", [0, 2])
def test_any_number_of_workers_gives_the_same(tasks, workers):
    results = list(extract_all(tasks, OPTIONS, workers))
    assert names(results) == ["a_0", "b_0", "c_0", "d_0"]
    alone = {cube.item.name: cube for result in extract_all(tasks, OPTIONS, 1) for cube in result.cubes}
    for result in results:
        for cube in result.cubes:
            np.testing.assert_array_equal(cube.hu, alone[cube.item.name].hu)
        assert 0 < result.read_s <= result.total_s


def test_a_worker_that_dies_costs_its_scan_only(tasks, monkeypatch):
    died = "(print('out of memory', file=sys.stderr, flush=True), os._exit(9)) if t.label.endswith('b.mhd') else real(t, o)"
    monkeypatch.setattr(processes, "WORKER", PATCHED.format(died))
    results = list(extract_all(tasks, OPTIONS, 2))
    assert names(results) == ["a_0", "c_0", "d_0"]
    (fault,) = [fault for result in results for fault in result.faults]
    assert (fault.kind, fault.lost) == ("unreadable", 1)
    assert fault.place.endswith("b.mhd")
    assert fault.text.startswith("the process reading it died (status 9, out of memory): too little memory")


def test_a_bug_in_a_worker_is_raised_with_its_traceback(tasks, monkeypatch):
    monkeypatch.setattr(processes, "WORKER", PATCHED.format("1 / 0"))
    with pytest.raises(WorkerError, match=r"ZeroDivisionError"):
        list(extract_all(tasks, OPTIONS, 2))


def test_a_worker_that_cannot_start_is_a_fault_with_its_reason(tasks, monkeypatch):
    monkeypatch.setattr(processes, "WORKER", "import a_module_that_is_not_there")
    results = list(extract_all(tasks, OPTIONS, 2))
    assert all("No module named 'a_module_that_is_not_there'" in result.faults[0].text for result in results)
    assert len(results) == 4


def test_what_a_library_prints_does_not_get_between_the_answers(tasks, monkeypatch):
    monkeypatch.setattr(processes, "WORKER", PATCHED.format("(os.write(1, b'MetaImage: warning'), real(t, o))[1]"))
    assert len(names(extract_all(tasks, OPTIONS, 2))) == 4


def test_stopping_early_leaves_no_process(tasks):
    many = tuple(Task(task.file, f"{i}", task.items) for i in range(20) for task in tasks)
    results = extract_all(many, OPTIONS, 2)
    next(results)
    results.close()
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    assert "gmmae.data.processes" not in children


def test_a_script_without_a_main_guard_may_load_data(luna_folder, tmp_path):
    config = luna_folder("abc")
    script = tmp_path / "plain_script.py"
    script.write_text(
        "import sys\nfrom gmmae.config import DataConfig\nfrom gmmae.data.prepare import load\n"
        f"nodules = load(DataConfig(source='luna16', root={config.root!r}, cache={str(tmp_path / 'other')!r}, workers=2))\n"
        "print(len(nodules.hu))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == "3\n", done.stderr


def test_workers_do_not_import_jax_and_a_cached_load_not_even_simpleitk(luna_folder):
    config = luna_folder("ab")
    load(config, [].append)
    check = (
        "import sys\nfrom gmmae.config import DataConfig\nfrom gmmae.data.prepare import load\n"
        f"load(DataConfig(source='luna16', root={config.root!r}, cache={config.cache!r}))\n"
        "print('SimpleITK' in sys.modules, 'jax' in sys.modules)\n"
        "import gmmae.data.processes\nprint('SimpleITK' in sys.modules, 'jax' in sys.modules, 'matplotlib' in sys.modules)\n"
    )
    root = Path(processes.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=root)
    assert done.stdout.split("\n")[:2] == ["False False", "True False False"], done.stderr
