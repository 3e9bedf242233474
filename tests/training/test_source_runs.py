"""Whole runs with samples from a source: what they read, and how they end. Their bits are in test_same_bits.py."""

import threading
from contextlib import nullcontext
from functools import partial

import jax
import numpy as np
import pytest

from gmmae.system.errors import StorageError
from gmmae.training import preparation
from gmmae.training.trained import load
from tests.small import fail, finish, interrupt, small
from tests.volume_sources import from_source


@pytest.fixture
def volumes(tmp_path):
    """Samples from a source. No thread that reads them outlives a test."""
    yield partial(from_source, tmp_path / "volumes.py")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gmmae-fetch")]


@pytest.mark.parametrize("end", [interrupt, fail])
def test_the_threads_end_with_a_run_that_is_interrupted_or_fails(tmp_path, volumes, end):
    with pytest.raises(MemoryError) if end is fail else nullcontext():
        assert finish(volumes(small(stop__max_epochs=50)), tmp_path / "run", 2, end)[0].epochs == 2


def test_a_run_says_that_it_reads_a_source_and_reads_each_sample_once_an_epoch(tmp_path, volumes):
    (reads := tmp_path / "reads").mkdir()
    small_chunks = {"parallel__prefetch_mb": 0.2, "parallel__fetch_threads": 1}
    _, display = finish(volumes(small(stop__max_epochs=2, **small_chunks), reads=str(reads)), tmp_path / "run")
    assert display.facts["data"].endswith("each 8×8×8; train and validation read from a source by 1 threads")
    [read] = [path.read_text().split() for path in reads.iterdir()]
    for epoch in (read[-44:-22], read[-22:]):  # before them some are read for the checks of the start
        assert sorted(map(int, epoch)) == list(range(22))


def test_a_source_that_fails_ends_the_run_in_one_line(tmp_path, volumes):
    with pytest.raises(StorageError, match=r"the train samples of .*volumes.py .* reading 7 raised OSError: .*disk is gone"):
        finish(volumes(small(), fails_at=7), tmp_path / "run")


def test_a_trained_model_evaluates_a_source_as_arrays(tmp_path, volumes):
    config = small(stop__max_epochs=1, data__samples=100, data__validation=80)
    finish(volumes(config), tmp_path / "run")
    model = load(tmp_path / "run")
    of_source = model.evaluate(model.workload.load().validation)
    of_arrays = model.evaluate(np.asarray(preparation.prepare(config).data.validation))
    jax.tree.map(np.testing.assert_array_equal, of_source, of_arrays)
