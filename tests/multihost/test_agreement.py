"""What the processes of a run must have in common."""

import pytest

from gmmae.multihost import agreement
from gmmae.multihost.agreement import DisagreementError, assert_equal
from tests.small import small


@pytest.mark.parametrize(
    ("values", "difference"),
    [
        ([{"a": "1", "b": "0"}, {"a": "2", "b": "0"}, {"a": "1", "b": "0"}], "got a 1 on processes 0, 2 and 2 on process 1"),
        ([{"a": "1"}, {}], "a 1 on process 0 and missing on process 1"),
        ([dict.fromkeys("abcde", "1"), dict.fromkeys("abcde", "2")], "; c 1 on process 0 and 2 on process 1; and 2 more"),
    ],
)
def test_differences_are_named_with_who_has_what(values, difference):
    assert_equal(values[:1] * 3)
    with pytest.raises(DisagreementError, match="same configuration, versions, code and data; got ") as caught:
        assert_equal(values)
    assert difference in str(caught.value)


def test_what_is_compared():
    words = agreement.program(small())
    assert {"jax", "jaxlib", "gmmae", "the sources of gmmae", "optim.batch_size", "stop.target", "parallel.devices"} <= set(
        words
    )
    assert not {key for key in words if key.startswith("distributed.")}
    assert agreement.program(small(parallel__devices=2))["parallel.devices"] == "2"


@pytest.mark.parametrize("key", ["checkpoint.every_epochs", "log.every_epochs", "parallel.prefetch_mb"])
def test_what_processes_do_together_is_compared(key):
    """Each of them would wait for ever for the others to do it too."""
    with pytest.raises(DisagreementError, match=f"got {key}"):
        assert_equal([agreement.program(small(**{key.replace(".", "__"): value})) for value in (4, 5)])
