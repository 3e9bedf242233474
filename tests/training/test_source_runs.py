"""Whole runs with samples from a source: the bits of arrays, on any devices, however they are read, resumed or ended."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gmmae.config.schema import changed
from gmmae.config.toml import to_toml
from gmmae.system import stop_reasons
from gmmae.system.errors import StorageError
from gmmae.training import compilation
from gmmae.training.compilation import RunCache
from gmmae.training.loop import run
from gmmae.training.trained import load
from tests.small import Recorder, fail, fingerprint, finish, interrupt, losses, small
from tests.volume_sources import from_source
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent

EXACT = {"parallel__deterministic": True, "parallel__deterministic_shards": 8, "optim__batch_size": 10}


@pytest.fixture
def volumes(tmp_path):
    return partial(from_source, tmp_path / "volumes.py")


def result(config, workdir):
    """What must not differ between arrays and a source."""
    record, display = finish(config, workdir)
    assert record.stop_reason == stop_reasons.MAX_EPOCHS, "a signal from outside is no difference of bits"
    assert len({row.val_loss for row in display.rows}) == len(display.rows), "losses that do not change would say nothing"
    return losses(display.rows), [row.metrics for row in display.rows], fingerprint(config, workdir)


slow = pytest.mark.slow
RUNS = {
    "chunks of three steps and of one": {"parallel__prefetch_mb": 0.23, "data__augment": True, "optim__batch_size": 6},
    "two devices": pytest.param({"parallel__devices": 2, "optim__batch_size": 5}, marks=slow),
    "one step": pytest.param({"optim__batch_size": 22}, marks=slow),
    "micro-batches": pytest.param({"parallel__micro_batch_size": 2}, marks=slow),
    "validations inside": pytest.param({"stop__validate_every_steps": 2}, marks=slow),
    "growing": pytest.param({"scaling": "growing", "optim__batch_doubling_epochs": (1, 2), "stop__max_epochs": 4}, marks=slow),
    "several validation steps": pytest.param({"data__samples": 400, "data__validation": 300}, marks=slow),
    "float64": pytest.param({"precision": "float64"}, marks=slow),
    "exact": pytest.param({**EXACT, "parallel__devices": 2}, marks=slow),
}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_a_source_has_the_bits_of_arrays(tmp_path, volumes, changes):
    config = small(**changes)
    assert result(volumes(config), tmp_path / "source") == result(config, tmp_path / "arrays")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gmmae-fetch")]


@slow
def test_the_exact_reduction_has_the_same_bits_on_1_2_and_4_devices(tmp_path, volumes):
    configs = {n: volumes(small(parallel__devices=n, **EXACT)) for n in (1, 2, 4)}
    of_devices = {n: result(config, tmp_path / str(n)) for n, config in configs.items()}
    assert of_devices[1] == of_devices[2] == of_devices[4] == result(small(**EXACT), tmp_path / "arrays")


@slow
def test_resumed_with_other_memory_and_threads(tmp_path, volumes):
    config = volumes(small(stop__max_epochs=5))
    first = changed(config, stop__max_epochs=2, parallel__prefetch_mb=0.001, parallel__fetch_threads=1)
    finish(first, tmp_path / "two")
    finish(config, tmp_path / "two")
    finish(small(stop__max_epochs=5), tmp_path / "arrays")
    assert fingerprint(config, tmp_path / "two") == fingerprint(small(stop__max_epochs=5), tmp_path / "arrays")


def no_threads():
    return not [thread for thread in threading.enumerate() if thread.name.startswith("gmmae-fetch")]


def test_the_threads_end_with_a_run_that_is_interrupted_or_fails(tmp_path, volumes):
    config, cache = volumes(small(stop__max_epochs=50)), RunCache()
    record = run(config, tmp_path / "interrupted", Recorder(2, interrupt), cache=cache)
    assert (record.stop_reason, record.epochs) == (stop_reasons.SIGTERM, 2)
    assert no_threads()
    with pytest.raises(MemoryError):
        run(config, tmp_path / "failed", Recorder(1, fail), cache=cache)
    assert no_threads()
    finish(changed(config, stop__max_epochs=3), tmp_path / "interrupted")
    assert no_threads()


def test_a_source_that_fails_ends_the_run_in_one_line(tmp_path, volumes):
    with pytest.raises(StorageError, match=r"the train samples of .*volumes.py .* reading 7 raised OSError: .*disk is gone"):
        run(volumes(small(), fails_at=7), tmp_path / "run", Recorder())
    assert no_threads()


def test_a_run_says_that_it_reads_a_source_and_reads_each_sample_once_an_epoch(tmp_path, volumes):
    display, reads = Recorder(), tmp_path / "reads"
    reads.mkdir()
    small_chunks = {"parallel__prefetch_mb": 0.2, "parallel__fetch_threads": 1}
    run(volumes(small(stop__max_epochs=2, **small_chunks), reads=str(reads)), tmp_path / "run", display)
    assert display.facts["data"].endswith("each 8×8×8; train and validation read from a source by 1 threads")
    [read] = [path.read_text().split() for path in reads.iterdir()]
    for epoch in (read[-44:-22], read[-22:]):  # before them some are read for the checks of the start
        assert sorted(map(int, epoch)) == list(range(22))


def test_a_trained_model_evaluates_a_source_as_arrays(tmp_path, volumes):
    config = small(stop__max_epochs=1, data__samples=100, data__validation=80)
    finish(volumes(config), tmp_path / "run")
    model = load(tmp_path / "run")
    of_source = model.evaluate(model.workload.load().validation)
    of_arrays = model.evaluate(np.asarray(compilation.prepare(config).data.validation))
    assert {name: values.tolist() for name, values in of_source.items()} == {
        name: values.tolist() for name, values in of_arrays.items()
    }


@slow
def test_a_signal_ends_the_command_with_a_checkpoint_and_the_source_goes_on(tmp_path, volumes):
    config = tmp_path / "run.toml"
    config.write_text(to_toml(volumes(small(stop__max_epochs=200), wait_s=0.02)))
    command = [sys.executable, "train.py", "--config", str(config), "--workdir", str(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    history = tmp_path / "run" / "history.csv"
    wait_until(lambda: history.is_file() and len(history.read_text().splitlines()) > 2, 120)
    began = time.monotonic()
    os.kill(process.pid, signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (143, "")
    assert time.monotonic() - began < 20
    assert any((tmp_path / "run" / "checkpoints").iterdir())
