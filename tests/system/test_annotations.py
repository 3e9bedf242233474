import itertools
import json
import math
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from gmmae.config.rules import PositiveInt
from gmmae.system.annotations import MISFITS, fitted
from gmmae.system.json_files import checked


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        (1, int | float, 1),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ({"a": [[1]]}, dict[str, list[list[int]]], {"a": [[1]]}),
        ("none", str | None, None),
        ("a/b", Path, Path("a/b")),
        (2, Literal["all"] | PositiveInt, 2),
    ],
)
def test_a_value_becomes_what_its_annotation_says(value, kind, result):
    found = fitted(value, kind)
    assert (found, repr(found)) == (result, repr(result))


@pytest.mark.parametrize(
    ("kinds", "values"),
    [
        ((int, float, Literal[1, 2], tuple[int, ...], str), [True]),
        ((float,), [math.nan, math.inf, "1", 10**400]),
        ((str, Path, tuple[str, ...]), ["a\0b"]),
        ((tuple[int, int],), [[1], [1, 2, 3], [1, 2.0], 1, "12"]),
        ((PositiveInt | None,), [0, 1.0, [1], "1"]),
        ((dict[str, int],), [[("a", 1)]]),
        ((str | int,), [None]),
    ],
)
def test_what_does_not_fit_is_refused(kinds, values):
    for kind, value in itertools.product(kinds, values):
        with pytest.raises(MISFITS):
            fitted(value, kind)


class Point(NamedTuple):
    x: float
    y: float = 0.0


def test_a_number_of_a_file_is_finite_unless_it_may_be_any():
    data = json.loads('{"x": 1, "y": NaN}')
    with pytest.raises(ValueError, match="y = nan"):
        checked(Point, data)
    assert math.isnan(checked(Point, data, any_number=["y"]).y)
