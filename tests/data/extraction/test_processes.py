import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gmmae.data.extraction import luna16, processes
from gmmae.data.extraction.prepare import load
from gmmae.data.extraction.processes import WorkerError, extract_all
from gmmae.data.extraction.tasks import Extracted, Transient
from gmmae.data.settings import DataConfig

CONFIG = DataConfig(source="luna16", scan_time_limit_s=None)
HANGS_OVER_B = "__import__('time').sleep(600) if t.label.endswith('b.mhd') else real(t, o)"
DIES_OVER_B = "(print('out of memory', file=sys.stderr, flush=True), os._exit(9)) if t.label.endswith('b.mhd') else real(t, o)"


@pytest.fixture
def tasks(luna_folder):
    return luna16.plan(luna_folder("abcd")).tasks


def extracted(tasks, workers):
    return [result for _, result in extract_all(tasks, CONFIG, workers) if isinstance(result, Extracted)]


def names(results):
    return sorted(cube.item.name for result in results if isinstance(result, Extracted) for cube in result.cubes)


def transients(answers):
    return {task.label.rpartition("/")[2]: result.text for task, result in answers if isinstance(result, Transient)}


@pytest.mark.parametrize("workers", [0, 2])
def test_any_number_of_workers_gives_the_same(tasks, workers):
    results = extracted(tasks, workers)
    assert names(results) == ["a_0", "b_0", "c_0", "d_0"]
    alone = {cube.item.name: cube for result in extracted(tasks, 1) for cube in result.cubes}
    for result in results:
        for cube in result.cubes:
            np.testing.assert_array_equal(cube.values, alone[cube.item.name].values)
        assert 0 < result.read_s <= result.total_s


@pytest.mark.parametrize(
    ("expression", "limit_s", "words"),
    [(DIES_OVER_B, None, "(status 9, out of memory)"), (HANGS_OVER_B, 1.0, "within 1 s (data.scan_time_limit_s")],
    ids=["dies", "hangs"],
)
def test_a_worker_that_dies_or_hangs_costs_its_scan_only(tasks, patch_worker, expression, limit_s, words):
    patch_worker(expression)
    began = time.monotonic()
    answers = list(extract_all(tasks, dataclasses.replace(CONFIG, scan_time_limit_s=limit_s), 2))
    assert time.monotonic() - began < 60
    assert names(result for _, result in answers) == ["a_0", "c_0", "d_0"]
    ((scan, text),) = transients(answers).items()
    assert scan == "b.mhd"
    assert words in text
    assert not workers_left()


def test_a_bug_in_a_worker_is_raised_with_its_traceback(tasks, patch_worker):
    patch_worker("1 / 0")
    with pytest.raises(WorkerError, match=r"ZeroDivisionError"):
        extracted(tasks, 2)


def test_a_worker_that_cannot_start_says_why(tasks, monkeypatch):
    monkeypatch.setattr(processes, "WORKER_PROGRAM", "import a_module_that_is_not_there")
    reasons = transients(extract_all(tasks, CONFIG, 2))
    assert all("No module named 'a_module_that_is_not_there'" in text for text in reasons.values())
    assert len(reasons) == 4


def test_what_a_library_prints_does_not_get_between_the_answers(tasks, patch_worker):
    patch_worker("(os.write(1, b'MetaImage: warning'), real(t, o))[1]")
    assert len(names(extracted(tasks, 2))) == 4


def test_stopping_early_leaves_no_process(tasks):
    many = tuple(task._replace(label=f"{i}") for i in range(20) for task in tasks)
    results = extract_all(many, CONFIG, 2)
    next(results)
    results.close()
    assert not workers_left()


def test_stopping_does_not_wait_for_a_decoder_that_hangs(tasks, patch_worker):
    patch_worker(HANGS_OVER_B)
    results = extract_all(tasks[:2], CONFIG, 2)
    next(results)
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < 60
    assert not workers_left()


def workers_left():
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    return "gmmae.data.extraction.processes" in children


def test_a_script_without_a_main_guard_may_load_data(luna_folder, tmp_path):
    config = luna_folder("abc")
    script = tmp_path / "plain_script.py"
    script.write_text(
        "import sys\nfrom gmmae.data.settings import DataConfig\nfrom gmmae.data.extraction.prepare import load\n"
        f"nodules = load(DataConfig(source='luna16', root={config.root!r}, cache={str(tmp_path / 'other')!r}, workers=2))\n"
        "print(len(nodules.values))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == "3\n", done.stderr


def test_workers_do_not_import_jax_and_a_cached_load_not_even_simpleitk(luna_folder):
    config = luna_folder("ab")
    load(config)
    check = (
        "import sys\nfrom gmmae.data.settings import DataConfig\nfrom gmmae.data.extraction.prepare import load\n"
        f"load(DataConfig(source='luna16', root={config.root!r}, cache={config.cache!r}))\n"
        "print('SimpleITK' in sys.modules, 'jax' in sys.modules)\n"
        "import gmmae.data.extraction.processes\n"
        "print('SimpleITK' in sys.modules, 'jax' in sys.modules, 'matplotlib' in sys.modules)\n"
    )
    root = Path(processes.__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=root)
    assert done.stdout.split("\n")[:2] == ["False False", "True False False"], done.stderr
