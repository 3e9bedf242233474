import json
import math
from typing import NamedTuple

import pytest

from gmmae.system.annotations import MISFITS, fitted
from gmmae.system.json_files import checked


@pytest.mark.parametrize(
    ("kind", "value"), [(float, 10**400), (float, True), (tuple[str, ...], "ab"), (str, "a\0b"), (dict[str, int], [("a", 1)])]
)
def test_what_does_not_fit_is_refused(kind, value):
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
