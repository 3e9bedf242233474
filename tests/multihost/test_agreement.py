"""What the processes of a run must have in common."""

import numpy as np
import pytest

from gmmae.multihost import agreement
from gmmae.multihost.agreement import DisagreementError, assert_equal
from gmmae.workloads import registry
from tests.small import small


def test_equal_words_pass():
    assert_equal([{"a": "1", "b": "2"}] * 3)


def test_a_difference_is_named_with_who_has_what():
    said = [{"jax": "0.10", "seed": "0"}, {"jax": "0.12", "seed": "0"}, {"jax": "0.10", "seed": "0"}]
    with pytest.raises(
        DisagreementError,
        match=r"same configuration, versions, code and data; got jax 0\.10 on processes 0, 2 and 0\.12 on process 1$",
    ):
        assert_equal(said)


def test_what_one_does_not_have_is_a_difference():
    with pytest.raises(DisagreementError, match="got a 1 on process 0 and missing on process 1"):
        assert_equal([{"a": "1"}, {}])


def test_many_differences_are_cut_short():
    with pytest.raises(DisagreementError, match=r"got a .*; b .*; c .*; and 2 more$"):
        assert_equal([dict.fromkeys("abcde", "1"), dict.fromkeys("abcde", "2")])


def test_what_is_compared():
    words = agreement.program(small())
    assert {
        "jax",
        "jaxlib",
        "gmmae",
        "the sources of gmmae",
        "optim.batch_size",
        "stop.target",
        "parallel.devices",
    } <= set(words)
    assert not {key for key in words if key.startswith(("distributed.", "log.", "checkpoint."))}
    assert agreement.program(small(parallel__devices=2))["parallel.devices"] == "2"


def hashes(config):
    data = registry.build(config).load()
    return agreement.data(data.train, data.validation)


def test_data_are_compared_to_the_last_bit():
    data = registry.build(small()).load()
    train, validation = data.train, data.validation
    assert agreement.data(train, validation) == hashes(small())
    density = train.copy()
    density.flat[-1] = np.nextafter(density.flat[-1], np.float32(9))
    with pytest.raises(DisagreementError, match=r"got the training data [0-9a-f]{12} on process 0 and"):
        assert_equal([agreement.data(train, validation), agreement.data(density, validation)])
    other = hashes(small(data__seed=1))
    assert other["the validation data"] != agreement.data(train, validation)["the validation data"]
