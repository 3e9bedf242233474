"""The program of a subprocess, called in this process with the work itself replaced; whole ones are in `test_sweep.py`."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gmmae.config.toml import to_toml
from gmmae.multihost.distributed import ALONE
from gmmae.sweep import step_times, throughput, worker
from gmmae.sweep.grid import TimingConfig
from gmmae.system import stop_reasons
from gmmae.system.guard import guarded
from gmmae.training import loop
from gmmae.training.compilation import RunCache
from gmmae.training.terminal import Plain
from tests.small import small
from tests.sweep.test_runs import RECORD
from tests.sweep.test_throughput import TIMINGS


def run_once(*words: str) -> int:
    return guarded(worker.Worker().run, *words)


CONFIG = small(scaling="weak", parallel__simulate_devices=2, parallel__devices="all")


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(to_toml(CONFIG))
    return path


@pytest.mark.parametrize("reason", stop_reasons.EXIT_CODES)
def test_the_exit_code_of_a_run_is_that_of_its_stop_reason(monkeypatch, tmp_path, toml, reason):
    calls = []
    ended = dataclasses.replace(RECORD, stop_reason=reason)
    monkeypatch.setattr(loop, "run", lambda *arguments: calls.append(arguments) or ended)
    assert run_once("train", str(toml), str(tmp_path / "run")) == stop_reasons.EXIT_CODES[reason]
    [(config, root, display, group, cache)] = calls
    assert (config, root, type(display), group, type(cache)) == (CONFIG, tmp_path / "run", Plain, ALONE, RunCache)


def test_step_times_are_measured_as_asked_and_written(monkeypatch, tmp_path, toml):
    given = []
    monkeypatch.setattr(throughput, "measure", lambda *arguments: given.append(arguments) or TIMINGS)
    timing = TimingConfig(device_batches=(4,), steps=2, blocks=3)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"batches": [8, 16], "validation": [6], "timing": dataclasses.asdict(timing)}))
    assert run_once("time", str(toml), str(request), str(tmp_path / "out.json")) == 0
    [(config, batches, validation, asked)] = given
    assert (config, batches, validation) == (CONFIG, [8, 16], [6])
    assert (asked.steps, asked.blocks, asked.warmup_steps) == (2, 3, timing.warmup_steps)
    assert step_times.read(tmp_path / "out.json") == TIMINGS


def test_bad_input_is_one_line_and_exit_code_2(tmp_path, toml, capsys):
    toml.write_text("[data]\nsampels = 3\n")
    assert run_once("train", str(toml), str(tmp_path / "run")) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {toml}: unknown key 'data.sampels'")
    assert error.count("\n") == 1


def test_a_run_watches_its_parent_before_it_imports_anything_large():
    """Until then it could outlive a killed sweep."""
    probe = "import sys, gmmae.sweep.worker\nassert not {'jax', 'numpy', 'tyro', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True, cwd=Path(__file__).parent.parent.parent)
