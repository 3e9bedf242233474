import jax.numpy as jnp
import numpy as np
import pytest

from gmmae.models.losses import LOSSES, dice, mean_of_each

E = float(np.e)
PREDICTION = jnp.array([[0.0, E - 1, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]])
TARGET = jnp.array([[E**2 - 1, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("msle", [(4 + 1) / 4, (np.log(4) ** 2 + np.log(2) ** 2) / 4]),
        ("mse", [((E**2 - 1) ** 2 + (E - 1) ** 2) / 4, (9 + 1) / 4]),
        ("mae", [((E**2 - 1) + (E - 1)) / 4, (3 + 1) / 4]),
    ],
)
@pytest.mark.parametrize("volume", [(4,), (2, 2), (2, 2, 1)])
def test_losses_against_numbers_worked_by_hand(loss, expected, volume):
    values = mean_of_each(LOSSES[loss](PREDICTION.reshape(2, *volume), TARGET.reshape(2, *volume)))
    np.testing.assert_allclose(values, expected, rtol=1e-6)  # a few float32 roundings


@pytest.mark.parametrize("name", LOSSES)
def test_a_perfect_prediction_costs_nothing_and_nan_stays_in_its_volume(name):
    values = mean_of_each(LOSSES[name](TARGET.at[1, 2].set(jnp.nan), TARGET))
    assert values[0] == 0
    assert jnp.isnan(values[1])


@pytest.mark.parametrize(
    ("logits", "truth", "counted", "expected"),
    [
        ([1, 2, -1, -2], [1, 0, 1, 0], [0] * 4, np.nan),
        ([1, -1, -1, -1], [0] * 4, [1] * 4, 0),
        ([-1] * 4, [0] * 4, [1] * 4, np.nan),
    ],
)
def test_the_dice_of_cases_made_by_hand(logits, truth, counted, expected):
    found = dice(jnp.array([[logits]], float), *(jnp.array([[mask]], bool) for mask in (truth, counted)))
    np.testing.assert_allclose(found, [expected], rtol=1e-6)
