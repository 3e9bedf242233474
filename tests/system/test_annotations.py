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
        (1, float, 1.0),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ([[1]], list[list[int]], [[1]]),
        ({"a": [1]}, dict[str, list[float]], {"a": [1.0]}),
        ("none", str | None, None),
        ("a/b", Path, Path("a/b")),
        (2, Literal["all"] | PositiveInt, 2),
    ],
)
def test_a_value_becomes_what_its_annotation_says(value, kind, result):
    found = fitted(value, kind)
    assert (found, repr(found)) == (result, repr(result))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((True, kind) for kind in (int, float, Literal[1, 2], tuple[int, ...], str)),
        *((value, float) for value in (math.nan, math.inf, "1", 10**400)),
        *(("a\0b", kind) for kind in (str, Path, tuple[str, ...])),
        *((value, tuple[int, int]) for value in ([1], [1, 2, 3], [1, 2.0], 1, "12")),
        *((value, PositiveInt | None) for value in (0, 1.0, [1], "1")),
        ([("a", 1)], dict[str, int]),
        (None, str | int),
    ],
)
def test_what_does_not_fit_is_refused(value, kind):
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
