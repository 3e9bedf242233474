"""What the first steps of a run are judged by."""

import numpy as np
import pytest

from experiments import failure, tables
from experiments.more_arms import MORE
from gmmae.config.schema import changed
from gmmae.config.toml import find
from gmmae.scaling import strategies
from gmmae.workloads.configuration import read_config


@pytest.fixture
def more_arms(monkeypatch):
    for name, scaling in MORE.items():
        monkeypatch.setitem(strategies.STRATEGIES, name, scaling)


@pytest.fixture(scope="module")
def base():
    config = read_config(find("quickstart"))
    return changed(config, data__samples=96, data__validation=32, model__filters=(2, 2, 2), model__latent_dim=4)


def test_cures_change_the_linear_rules_only(base, more_arms):
    found = failure.configurations(base, [0, 1])
    assert {(scaling, cure) for cure, scaling, _, _ in found if not scaling.startswith("linear")} == {
        ("strong", "none"),
        ("weak", "none"),
    }
    assert found["memory", "linear", 8, 1].scaling == "linear-memory"
    assert found["leaky_relu", "linear", 8, 1].settings.model.activation == "leaky_relu"
    assert found["clip", "linear-warmup", 8, 0].optim.clip_norm is not None


@pytest.mark.slow
def test_a_rate_without_bounds_saturates_the_mixture_and_ends_the_gradient(base, tmp_path):
    usual = failure.course(changed(base, scaling="strong", parallel__simulate_devices=1), 10)
    wild = failure.course(changed(base, scaling="strong", parallel__simulate_devices=1, optim__learning_rate=10.0), 10)
    assert [row["step"] for row in usual] == [0, 4, 8, 12]
    assert usual[-1]["gradient"] > 0
    assert usual[-1]["at_the_edge"] < 0.01
    assert wild[-1]["at_the_edge"] > 0.9
    assert wild[-1]["gradient"] < 1e-3 * usual[-1]["gradient"]
    assert np.isfinite(wild[-1]["val_loss"])
    named = {"cure": "none", "scaling": "strong", "devices": 1, "seed": 0}
    tables.write(tmp_path / "courses.csv", [named | row for row in usual])
    assert failure.figure(tables.read(tmp_path / "courses.csv"), tmp_path / "courses.png").stat().st_size > 10_000
