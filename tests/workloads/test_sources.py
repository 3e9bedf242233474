"""Sources of samples: what they may be, the one line for each way in which they misbehave, and the threads that read them."""

import re
import threading
import time

import jax
import numpy as np
import pytest

from gmmae.scaling.batches import epoch_order, plan_batches, shard_samples
from gmmae.system.errors import InputError
from gmmae.workloads import sources
from gmmae.workloads.sources import NO_SAMPLE, CheckedSource, Fetcher, is_source, rows_of, take_on_host
from tests.waiting import wait_until


class Squares:
    """Numbers and their squares, but for one sample."""

    def __init__(self, count=20, at=17, instead=None):
        self.count, self.at, self.instead = count, at, instead

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.at and self.instead is not None:
            return self.instead()
        return {"number": np.float32(index), "square": np.full(2, index**2)}


def unreadable():
    raise OSError(5, "Input/output error", "17.dcm")


def leave():
    raise SystemExit(3)


def fail_without_words():
    raise RuntimeError


REFUSED = {
    "empty": (Squares(0), "the samples must be at least 1; got a source of length 0"),
    "text": (
        Squares(at=0, instead=lambda: "volume"),
        "must be numbers or arrays of them, integers of at most 32 bits; got <U6",
    ),
    "nothing": (
        Squares(at=0, instead=lambda: {}),
        "must be numbers or arrays of them, integers of at most 32 bits; got nothing",
    ),
    "shape": (
        Squares(instead=lambda: {"number": np.float32(1), "square": np.zeros(3, int)}),
        "the same form; got float32 and int64 3 in {'number': *, 'square': *} for sample 17, and float32 and int64 2 in ",
    ),
    "type": (
        Squares(instead=lambda: {"number": 1, "square": np.zeros(2, int)}),
        "got int64 and int64 2 in {'number': *, 'square': *} for sample 17, and float32",
    ),
    "structure": (
        Squares(instead=lambda: {"number": np.float32(1)}),
        "the same form; got float32 in {'number': *} for sample 17, and float32 and int64 2 in {'number': *, 'square': *}",
    ),
    "an error": (Squares(instead=unreadable), "reading 17 raised OSError: [Errno 5] Input/output error: '17.dcm' ("),
    "an exit": (Squares(instead=leave), "reading 17 raised SystemExit: 3 ("),
    "an error without words": (Squares(instead=fail_without_words), "reading 17 raised RuntimeError ("),
}


@pytest.mark.parametrize(("source", "words"), REFUSED.values(), ids=REFUSED)
def test_a_source_that_misbehaves_is_refused_in_one_line(source, words):
    with pytest.raises(InputError) as error:
        take_on_host(CheckedSource(source, "the samples"), np.arange(len(source)))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_source_must_keep_its_length():
    source = Squares()
    checked = CheckedSource(source, "the samples")
    checked.require_same_length()
    source.count = 19
    with pytest.raises(InputError, match=re.escape("must keep their number, 20, during a run; got a source of length 19")):
        checked.require_same_length()


@pytest.mark.parametrize("arrays", [np.zeros((5, 2)), {"a": np.zeros(5)}, (np.zeros(5), np.ones(5)), [np.zeros(5)]])
def test_arrays_are_no_source(arrays):
    assert not is_source(arrays)
    assert sources.checked(arrays, "the samples") is arrays


def test_a_checked_source_is_a_source_and_is_checked_once():
    checked = sources.checked(Squares(), "the samples")
    assert is_source(checked)
    assert sources.checked(checked, "the samples") is checked
    assert jax.tree.map(float, checked[3]["number"]) == 3.0


def test_some_samples_are_arrays_with_the_samples_along_the_leading_axis():
    some = take_on_host(CheckedSource(Squares(), "the samples"), np.array([3, 1]))
    assert {name: array.tolist() for name, array in some.items()} == {"number": [3, 1], "square": [[9, 9], [1, 1]]}


def test_a_resized_source_repeats_its_samples():
    assert [float(CheckedSource(Squares(3), "the samples").resized(7)[i]["number"]) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_source_is_known_by_its_first_its_last_and_eight_more_samples():
    def hashed(source):
        return sources.hashes(CheckedSource(source, "the samples"))[0]

    assert len(hashed(Squares())) == 10
    assert hashed(Squares())[0] == hashed(Squares(5))[0]
    changed = Squares(at=19, instead=lambda: {"number": np.float32(5), "square": np.zeros(2, int)})
    assert [one == other for one, other in zip(hashed(Squares()), hashed(changed), strict=True)] == [True] * 9 + [False]


@pytest.mark.parametrize(
    ("samples", "batch", "shards", "devices"), [(22, 8, 1, 1), (22, 8, 3, 3), (22, 22, 4, 4), (32, 16, 8, 2)]
)
def test_a_device_needs_each_sample_of_its_own_slots_once(samples, batch, shards, devices):
    indices, _ = shard_samples(epoch_order(0, 1, samples), plan_batches(samples, batch, shards))
    needed, rows = rows_of(indices, devices)
    for own, row, index in zip(needed, np.split(rows, devices), np.split(indices, devices), strict=True):
        assert (own[row] == index).all()
        assert sorted(own[own != NO_SAMPLE]) == sorted(set(index.ravel()))


class Waiting(Squares):
    """Samples that take a while; `most` were read at once."""

    reading = most = begun = 0
    lock = threading.Lock()

    def __getitem__(self, index):
        with self.lock:
            self.reading, self.begun = self.reading + 1, self.begun + 1
            self.most = max(self.most, self.reading)
        time.sleep(0.02)
        with self.lock:
            self.reading -= 1
        return np.float64(index)


def test_as_many_samples_at_once_as_threads_in_the_order_and_the_type_that_are_asked_for():
    source = Waiting()
    index = np.array([[3, 19, NO_SAMPLE], [5, 4, 3]])
    with Fetcher(3) as fetcher:
        read = fetcher.begin(CheckedSource(source, "the samples"), np.float32(0), index)()
    assert (read.dtype, read.tolist(), source.most) == (np.float32, [[3, 19, 0], [5, 4, 3]], 3)


def test_threads_end_with_the_run_after_the_sample_that_they_read():
    source = Waiting(count=1000)
    with Fetcher(2) as fetcher:
        fetcher.begin(CheckedSource(source, "the samples"), np.float32(0), np.arange(1000))
        wait_until(lambda: source.begun > 2)
    assert (source.reading, source.begun < 500) == (0, True)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gmmae-fetch")]
