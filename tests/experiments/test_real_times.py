"""Plans against the clock: this machine as a cluster, and the errors of what was said."""

import math

import pytest

from experiments import real_times
from gmmae.scaling.cost import all_reduce_s, read_cluster


def test_this_machine_as_a_cluster_takes_what_was_measured(tmp_path):
    measured = {8: 0.4e-3, 8_000_000: 10e-3}
    found = read_cluster(real_times.cluster(tmp_path / "here.toml", measured, 0.03, 16))
    assert [all_reduce_s(found, 2, size) for size in measured] == pytest.approx(list(measured.values()))
    assert (found.reference_step_s, found.reference_batch) == (0.03, 16)


def test_a_large_all_reduce_that_was_as_quick_as_a_small_one_is_no_error(tmp_path):
    found = read_cluster(real_times.cluster(tmp_path / "here.toml", {8: 1e-3, 8_000_000: 1e-3}, 0.03, 16))
    assert all_reduce_s(found, 2, 8) == pytest.approx(1e-3)


def test_errors_are_those_of_logarithms_over_the_runs_that_arrived():
    arrived = {"outcome": "target_reached", "steps": 100, "said_steps": 110, "seconds": 2.0, "said_s": 2.2}
    arrived |= {"said_low_s": 1.9, "said_high_s": 2.5}
    late = arrived | {"outcome": "max_epochs", "seconds": math.nan}
    slow = arrived | {"seconds": 4.4}
    found = {name: value for name, value in real_times.summary([arrived, late, slow])}
    assert found["runs that arrived"] == "2 of 3"
    assert found["time to the target: abs. log error"] == "0.394 / 0.693"
    assert found["steps: abs. log error"] == "0.095 / 0.095"
    assert found["80 % intervals that hold the time"] == "1 of 2"


def test_the_example_of_the_guide_can_be_run(tmp_path):
    real_times.prepare(tmp_path)
    from gmmae.config.toml import find
    from gmmae.workloads.configuration import read_config

    config = read_config(find(str(tmp_path / "images.toml")))
    assert (config.stop.target, config.optim.batch_size) == (0.08, 32)
