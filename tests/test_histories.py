"""Losses of short runs as they were before the rewriting began, in histories.json: a change of the code must not move them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gmmae.config.schema import changed
from tests.small import EXACT, SMALL_LATTICE, SMALL_SEGMENTATION, finish, losses
from tests.small import small as relu

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("optimised")]

KEPT = Path(__file__).with_name("histories.json")
RTOL = 1e-5
"""Other processors add in another order. The runs are smooth, so that this does not grow."""


def small(**changes: Any):
    return relu(model__activation="silu", **changes)


FOUR = {"parallel__devices": 4}
RUNS = {
    "strong": small(**FOUR),
    "weak": small(**FOUR, scaling="weak"),
    "linear-warmup": small(**FOUR, scaling="linear-warmup", optim__scaling_warmup_epochs=2),
    "sde": small(**FOUR, scaling="sde", optim__weight_decay=0.01),
    "growing": small(**FOUR, scaling="growing", optim__batch_doubling_epochs=(1, 2)),
    "momentum with clipping and cosine": small(
        **FOUR, optim__name="momentum", optim__learning_rate=0.1, optim__clip_norm=1.0, optim__cosine_epochs=3
    ),
    "augmented": small(data__augment=True, optim__batch_size=7),
    "validated within epochs": small(stop__validate_every_steps=1),
    "float64": small(precision="float64"),
    "exact on 1": small(**EXACT),
    "exact on 4": small(**EXACT, **FOUR),
    "lattice": small(**SMALL_LATTICE),
    "segmentation": changed(SMALL_SEGMENTATION, parallel__devices="all"),
}


@pytest.mark.parametrize("name", RUNS)
def test_losses_are_those_of_before(tmp_path, name):
    _, display = finish(RUNS[name], tmp_path / "run")
    np.testing.assert_allclose(losses(display.rows), json.loads(KEPT.read_text())[name], rtol=RTOL)
