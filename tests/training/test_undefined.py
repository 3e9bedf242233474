"""Metrics that are undefined for some samples: means are over the others, on any number of devices."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.training import preparation, programs
from gmmae.training.preparation import RunCache
from tests.small import small


def with_metric(threshold, devices, above=jnp.nan):
    """A setup whose metric is a volume's largest density, undefined (or what else is given) above the threshold."""
    setup = preparation.prepare(small(parallel__devices=devices))

    def metrics(params, samples):
        largest = jnp.asarray(samples).max((1, 2, 3))
        return {"largest": jnp.where(largest > threshold, above, largest), "doubled": 2 * largest}

    data = dataclasses.replace(setup.data, may_be_undefined=("largest",))
    return setup._replace(workload=setup.workload._replace(metrics=metrics), data=data, cache=RunCache())


def evaluated(setup):
    params = setup.devices.replicate(preparation.initial_state(setup).params)
    return programs.validation(setup, params)(params)


@pytest.mark.parametrize("devices", [1, 3, 4])
def test_the_mean_is_over_the_samples_that_define_it(devices):
    each = np.sort(np.asarray(preparation.prepare(small()).data.validation).max((1, 2, 3)))
    found = evaluated(with_metric(each[3], devices))
    assert set(found) == {"loss", "largest", "doubled"}
    assert found["largest"] == pytest.approx(each[:4].mean(), rel=1e-6)
    assert found["doubled"] == pytest.approx(2 * each.mean(), rel=1e-6)
    everywhere = evaluated(with_metric(np.inf, devices))
    assert 2 * everywhere["largest"] == everywhere["doubled"] == found["doubled"]  # to the last bit
    nowhere = evaluated(with_metric(-1.0, devices))
    assert np.isnan(nowhere["largest"])
    assert np.isfinite(nowhere["loss"])
    assert evaluated(with_metric(-1.0, devices, jnp.inf))["largest"] == np.inf
