"""Sources of samples: what they may be, and the one line for each way in which they misbehave."""

import re

import jax
import numpy as np
import pytest

from gmmae.system.errors import InputError
from gmmae.workloads import sources
from gmmae.workloads.sources import CheckedSource, is_source


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
        "the same form; got float32 and int64 3 for sample 17, and float32 and int64 2 for sample 0",
    ),
    "type": (
        Squares(instead=lambda: {"number": 1, "square": np.zeros(2, int)}),
        "got int64 and int64 2 for sample 17, and float32",
    ),
    "structure": (
        Squares(instead=lambda: {"number": np.float32(1)}),
        "the same form; got {'number': *} for sample 17, and {'number': *, 'square': *} for sample 0",
    ),
    "an error": (Squares(instead=unreadable), "reading 17 raised OSError: [Errno 5] Input/output error: '17.dcm' ("),
    "an exit": (Squares(instead=leave), "reading 17 raised SystemExit: 3 ("),
    "an error without words": (Squares(instead=fail_without_words), "reading 17 raised RuntimeError ("),
}


@pytest.mark.parametrize(("source", "words"), REFUSED.values(), ids=REFUSED)
def test_a_source_that_misbehaves_is_refused_in_one_line(source, words):
    with pytest.raises(InputError) as error:
        CheckedSource(source, "the samples").take(range(len(source)))
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
    some = CheckedSource(Squares(), "the samples").take([3, 1])
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
