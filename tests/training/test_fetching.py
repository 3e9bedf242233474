"""The threads that read a source: what they read, when, and how they end."""

import threading
import time

import jax
import numpy as np
import pytest

from gmmae.config.schema import ParallelConfig
from gmmae.scaling.batches import epoch_order, plan_batches, shard_samples
from gmmae.system.errors import InputError
from gmmae.training.fetching import NO_SAMPLE, BlockStream, Fetcher, block_rows, read_in_order
from gmmae.workloads.sources import CheckedSource
from tests.waiting import wait_until


class Numbers:
    """Samples that are their own positions, and a list of those read."""

    def __init__(self, count=100, wait_s=0.0):
        self.count, self.wait_s, self.read, self.at_once, self.most = count, wait_s, [], 0, 0
        self.lock = threading.Lock()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with self.lock:
            self.read.append(index)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.wait_s)
        with self.lock:
            self.at_once -= 1
        return np.float32(index)


def fetcher(threads=4):
    return Fetcher(ParallelConfig(fetch_threads=threads))


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gmmae-fetch")]


def stream(of, source, last=10):
    """Blocks of ten samples: block n has those from 10 n on."""
    checked = CheckedSource(source, "the samples")
    source.read.clear()  # of the first sample, for its form
    return BlockStream(
        of,
        checked,
        checked.first,
        lambda block: np.arange(10 * block, 10 * block + 10, dtype=np.int32)[None],
        lambda block: block + 1 if block + 1 < last else None,
    )


@pytest.mark.parametrize(("devices", "batch"), [(1, 8), (3, 8), (4, 22)])
def test_rows_of_a_block_are_the_samples_of_the_slots(devices, batch):
    indices, _ = shard_samples(epoch_order(0, 1, 22), plan_batches(22, batch, devices))
    samples, rows = block_rows(indices, indices.shape[1], None)
    for device in range(devices):
        assert (samples[device][rows[device]] == indices[device]).all()
        real = samples[device][samples[device] != NO_SAMPLE]
        assert sorted(real) == sorted(set(indices[device].ravel())), "no sample is read twice, and none that is not needed"


def test_a_device_gets_only_the_samples_of_its_own_shards():
    indices, _ = shard_samples(epoch_order(0, 1, 32), plan_batches(32, 16, 8))
    every = np.broadcast_to(indices.swapaxes(0, 1), (2, 2, 8, 2))  # as the exact reduction has them: all shards on both devices
    samples, rows = block_rows(every, 2, np.array([[0, 4], [4, 4]]))
    assert not set(samples[0]) & set(samples[1])
    assert samples.shape == (2, 16)
    for device, own in enumerate((slice(0, 4), slice(4, 8))):
        assert (samples[device][rows[device][:, own]] == every[device][:, own]).all()


def test_one_block_is_read_ahead_and_no_more():
    source = Numbers()
    with fetcher() as of:
        blocks = stream(of, source)
        assert blocks.get(0).tolist() == [list(range(10))]
        wait_until(lambda: len(source.read) == 20)
        time.sleep(0.05)
        assert sorted(source.read) == list(range(20))
        assert blocks.get(1).tolist() == [list(range(10, 20))]
        wait_until(lambda: len(source.read) == 30)


def test_the_last_block_is_followed_by_none():
    source = Numbers()
    with fetcher() as of:
        blocks = stream(of, source, last=2)
        assert [blocks.get(block)[0, 0] for block in (0, 1)] == [0, 10]
    assert sorted(source.read) == list(range(20))


def test_another_block_than_the_next_one():
    with fetcher() as of:
        blocks = stream(of, Numbers())
        assert [blocks.get(block)[0, 0] for block in (0, 5, 6, 0)] == [0, 50, 60, 0]


def test_as_many_samples_at_once_as_threads():
    source = Numbers(wait_s=0.005)
    with fetcher(threads=3) as of:
        stream(of, source).get(0)
    assert source.most == 3


def test_threads_end_with_the_run_after_the_sample_that_they_read():
    source = Numbers(wait_s=0.2)
    with fetcher(threads=2) as of:
        blocks = stream(of, source)
        blocks._begin(0)
        wait_until(lambda: len(source.read) >= 2)
        assert len(threads()) == 2
    assert threads() == []
    assert len(source.read) < 10, "samples of the block that no thread had begun are left out"


def test_an_error_of_the_source_reaches_the_run():
    class Broken(Numbers):
        def __getitem__(self, index):
            if index == 13:
                raise ValueError("no such\nscan")
            return super().__getitem__(index)

    with fetcher() as of:
        blocks = stream(of, Broken())
        blocks.get(0)
        with pytest.raises(InputError, match="reading 13 raised ValueError: no such scan"):
            blocks.get(1)


def test_samples_have_the_types_that_are_asked_for():
    source = CheckedSource(Numbers(), "the samples")
    with fetcher() as of:
        assert of.read(source, np.float64(0), np.array([[3, 2]], np.int32)).wait().dtype == np.float64


def test_all_samples_in_their_order():
    source = CheckedSource(Numbers(25), "the samples")
    with fetcher() as of:
        parts = list(read_in_order(of, source, source.first, 10))
    assert [part for part, _ in parts] == [range(10), range(10, 20), range(20, 25)]
    values = np.concatenate([jax.tree.leaves(values)[0][: len(part)] for part, values in parts])
    assert values.tolist() == list(range(25))
