from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gmmae.config.schema import OptimConfig
from gmmae.scaling.schedules import learning_rate
from gmmae.scaling.strategies import STRATEGIES, Resolved, ScalingStrategy, Stage, base_batch, batch_a_device, resolve
from gmmae.system.errors import InputError

OPTIM = OptimConfig(
    learning_rate=0.001,
    batch_size=32,
    best_batches=(32, 50, 80),
    batch_doubling_epochs=(5, 10, 15, 20, 25),
    decay_epochs=(30, 60),
    decay_factor=0.5,
)
LARGE = 10_000  # training samples that clip nothing

# Worked manually: the batch, and the learning rates before and after a warmup. 32 devices ask for 1024 of 574 samples:
# 574 / 32 = 17.9375, its square root 4.23527. The SDE rule ends at 10 base batches, and the root of 10 is 3.16228. A batch that
# grows is the last one of a run.
BY_HAND = [
    ("strong", 4, 32, 0.001, 0.001),
    ("weak", 4, 128, 0.001, 0.001),
    ("linear", 4, 128, 0.004, 0.004),
    ("linear-warmup", 4, 128, 0.001, 0.004),
    ("sqrt", 4, 128, 0.002, 0.002),
    ("sqrt-warmup", 4, 128, 0.001, 0.002),
    ("sde", 4, 128, 0.002, 0.002),
    ("sde-warmup", 4, 128, 0.001, 0.002),
    ("growing", 4, 128, 0.001, 0.001),
    ("best-batch", 4, 80, 0.001, 0.001),
    ("local", 4, 32, 0.001, 0.001),
    ("local-sqrt", 4, 32, 0.002, 0.002),
    ("local-weak", 4, 128, 0.001, 0.001),
    ("weak", 32, 574, 0.001, 0.001),
    ("linear", 32, 574, 0.0179375, 0.0179375),
    ("linear-warmup", 32, 574, 0.001, 0.0179375),
    ("sqrt", 32, 574, 0.00423527, 0.00423527),
    ("sqrt-warmup", 32, 574, 0.001, 0.00423527),
    ("sde", 32, 320, 0.00316228, 0.00316228),
    ("sde-warmup", 32, 320, 0.001, 0.00316228),
    ("growing", 32, 574, 0.001, 0.001),
]


@pytest.mark.parametrize(("name", "devices", "batch", "first", "peak"), BY_HAND)
def test_every_strategys_batch_and_rate_against_numbers_worked_by_hand(name, devices, batch, first, peak):
    found = resolve(name, OPTIM, devices, 574)
    last = found.stages[-1]
    assert (found.wanted_batch, last.batch) == (1024 if devices == 32 else batch, batch)
    assert last.learning_rate == pytest.approx(peak, rel=1e-5)
    assert last.scaling_warmup_epochs == (5 if first != peak else 0)
    assert np.asarray(learning_rate(last, 18)(0)).item() == pytest.approx(first, rel=1e-5)


def test_every_strategy_is_worked_by_hand():
    assert {name for name, *_ in BY_HAND} == set(STRATEGIES)
    page = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
    assert [name for name in STRATEGIES if f"`{name}`" not in page.partition("## The strategies")[2]] == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_the_base_on_one_device_with_its_decay(name):
    assert resolve(name, OPTIM, 1, LARGE) == Resolved(32, (Stage(1, 32, 0.001, 0, OPTIM),))


def test_a_training_set_smaller_than_the_base_batch_lowers_the_rate_of_the_rule():
    """k = 8 / 32."""
    stages = [resolve(name, OPTIM, 1, 8).stages[0] for name in ("strong", "linear", "sqrt")]
    assert [stage.learning_rate for stage in stages] == [0.001, 0.00025, 0.0005]


def test_what_only_a_plan_knows_must_be_given():
    with pytest.raises(InputError, match="best_batches must be given"):
        resolve("best-batch", OptimConfig(), 2, LARGE)


def test_a_strategy_of_ones_own_brings_no_weight_decay_where_there_is_none(monkeypatch):
    decayed = ScalingStrategy("Decayed", base_batch, optimizer=lambda optim, k: replace(optim, weight_decay=0.1 * k))
    monkeypatch.setitem(STRATEGIES, "decayed", decayed)
    assert resolve("decayed", replace(OPTIM, weight_decay=0.2), 2, LARGE).stages[0].optim.weight_decay == 0.1
    with pytest.raises(InputError, match="weight decay"):
        resolve("decayed", OPTIM, 2, LARGE)


def test_growing_local_steps_of_ones_own_have_the_rate_of_all_devices(monkeypatch):
    own = ScalingStrategy("Own", batch_a_device, lambda k: k, local=True, doubles_after=lambda optim: (4, 2))
    monkeypatch.setitem(STRATEGIES, "own", own)
    stages = resolve("own", OPTIM, 3, LARGE).stages
    assert [stage[:3] for stage in stages] == [(1, 32, 0.003), (3, 64, 0.003), (5, 96, 0.003)]
    assert {stage.replicas for stage in stages} == {3}


def test_a_planned_batch_grows_with_the_root_beyond_the_planned_devices():
    assert [resolve("best-batch", OPTIM, n, LARGE).stages[0].batch for n in (1, 2, 3, 4, 16)] == [32, 50, 61, 80, 160]
