"""Sources of samples: what they may be, the one line for each way in which they misbehave, and the threads that read them."""

import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.system.errors import InputError
from gmmae.workloads import sources
from gmmae.workloads.sources import NO_SAMPLE, CheckedSource, Fetcher, take_on_host
from tests.waiting import wait_until


class Squares:
    """Numbers and their squares, but for one sample, or an error in its place."""

    def __init__(self, count=20, at=17, instead=None):
        self.count, self.at, self.instead = count, at, instead

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index != self.at or self.instead is None:
            return {"number": np.float32(index), "square": np.full(2, index**2)}
        if isinstance(self.instead, BaseException):
            raise self.instead
        return self.instead


REFUSED = {
    "empty": (Squares(0), "must be at least 1; got a source of length 0"),
    "text": (Squares(at=0, instead="volume"), "got <U6"),
    "masked": (Squares(at=0, instead=np.ma.masked_equal([1, 9999], 9999)), "got a masked array"),
    "nothing": (Squares(at=0, instead={}), "got nothing"),
    "shape": (Squares(instead={"number": np.float32(1), "square": np.zeros(3, int)}), "got float32 and int64 3 in "),
    "type": (Squares(instead={"number": 1, "square": np.zeros(2, int)}), "got int64 and int64 2 in "),
    "structure": (
        Squares(instead={"number": np.float32(1)}),
        "got float32 in {'number': *} for sample 17, and float32 and int64 2",
    ),
    "an error": (
        Squares(instead=OSError(5, "Input/output error", "17.dcm")),
        "17 raised OSError: [Errno 5] Input/output error: '17.dcm'",
    ),
    "an exit": (Squares(instead=SystemExit(3)), "17 raised SystemExit: 3 ("),
    "an error without words": (Squares(instead=RuntimeError()), "17 raised RuntimeError ("),
}


@pytest.mark.parametrize(("source", "words"), REFUSED.values(), ids=REFUSED)
def test_a_source_that_misbehaves_is_refused_in_one_line(source, words):
    with pytest.raises(InputError) as error:
        take_on_host(CheckedSource(source, "the samples"), np.arange(len(source)))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_some_samples_are_arrays_with_the_samples_along_the_leading_axis_and_may_repeat():
    checked = sources.checked(Squares(), "the samples")
    assert sources.checked(checked, "the samples") is checked
    some = take_on_host(checked.resized(50), np.array([3, 1, 43]))
    assert {name: array.tolist() for name, array in some.items()} == {"number": [3, 1, 3], "square": [[9, 9], [1, 1], [9, 9]]}


@pytest.mark.parametrize("arrays", [np.zeros((5, 2)), {"a": np.zeros(5)}, (np.zeros(5), np.ones(5)), [np.zeros(5)]])
def test_arrays_are_no_source(arrays):
    assert type(sources.checked(arrays, "the samples")) is type(arrays)


def test_a_source_must_keep_its_length():
    source = Squares()
    checked = CheckedSource(source, "the samples")
    checked.require_same_length()
    source.count = 19
    with pytest.raises(InputError, match=r"keep their number, 20, .* 19"):
        checked.require_same_length()


def test_a_source_is_known_by_its_first_its_last_and_eight_more_samples():
    other = Squares(at=19, instead={"number": np.float32(5), "square": np.zeros(2, int)})
    hashes, others = (sources.hashes(CheckedSource(source, "the samples"))[0] for source in (Squares(), other))
    assert [one == another for one, another in zip(hashes, others, strict=True)] == [True] * 9 + [False]


@pytest.mark.parametrize("grid", [{}, {"grid": np.ones((20, 900))}])
def test_a_sample_is_known_by_its_own_arrays_whatever_the_samples_beside_it_are(grid):
    images = np.arange(320, dtype=float).reshape(20, 16)
    samples = {"image": images, "mask": (images > 200).astype(np.float32), "offset": np.arange(40).reshape(20, 2), **grid}
    found, others = sources.hashes(samples)
    assert (len(set(found)), len(others)) == (20, 0 if grid else 1)
    for part in (slice(5), slice(15, 20), *[slice(3, 4)] * (not grid)):
        assert sources.hashes({name: array[part] for name, array in samples.items()})[0] == found[part]


def test_samples_are_the_same_in_any_floating_point_type_and_with_either_zero():
    numbers = np.arange(200).reshape(20, 10)
    found = [sources.hashes(numbers.astype(kind)) for kind in (np.float64, np.float32, np.float16, jnp.bfloat16)]
    found.append(sources.hashes(np.where(numbers, numbers, -0.0)))
    assert all(of_samples == found[0][0] for of_samples, _ in found)


class Reused:
    """A source that gives the same memory for each sample."""

    memory = np.zeros(3)

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self.memory[:] = index
        return self.memory


def test_samples_in_the_same_memory_are_copied():
    assert sources.take_on_host(CheckedSource(Reused(), "the samples"), np.array([4, 0, 2]))[:, 0].tolist() == [4, 0, 2]


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
