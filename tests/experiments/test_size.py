"""How sizes of data sets are compared: which runs there are, and the table of them."""

from dataclasses import replace

import pytest

from experiments import size
from experiments.real_times import example
from gmmae.system.errors import InputError
from gmmae.training import loop
from gmmae.workloads.configuration import configure


def row(samples, scaling, devices, batch, crossing, outcome="target_reached", seed=0):
    values = {"samples": samples, "scaling": scaling, "devices": devices, "batch": batch, "seed": seed, "crossing": crossing}
    return {key: str(value) for key, value in (values | {"outcome": outcome, "epochs": 3}).items()}


def test_batches_have_at_most_the_samples(tmp_path):
    config = configure("", workload=str(example(tmp_path)), images=160)  # 120 for training
    found = [(scaling, devices) for scaling, devices, _ in size.paths(config, [0])]
    assert found == [("strong", 1), ("quarter", 1), *((scaling, 2) for scaling in size.ARMS)]


def test_the_quarter_is_a_batch_of_its_own(tmp_path):
    config = configure("", workload=str(example(tmp_path)), images=160)
    by_arm = {(scaling, n): one for scaling, n, one in size.paths(config, [3])}
    assert by_arm["quarter", 1].optim.batch_size == 8
    assert by_arm["weak", 2].parallel.simulate_devices == 2
    assert {one.seed for one in by_arm.values()} == {3}


def test_the_law_is_that_of_the_runs_at_the_base_rate():
    rows = [row(480, "strong", 1, 32, 200.0), row(480, "quarter", 1, 8, 500.0), row(480, "linear", 2, 64, 1.0, "collapsed")]
    rows += [row(480, "weak", 2, 64, 150.0)]  # 100 (1 + 32 / B)
    head, line = size.summary(rows)
    found = dict(zip(head, line, strict=True))
    assert (found["Smin"], found["Bn"], found["B / Bn"]) == ("100", "32.0", "1.00")
    assert (found["linear misses"], found["weak misses"]) == ("1 of 1, from n = 2", "none of 1")


def test_a_run_that_is_ended_by_a_signal_is_no_miss(tmp_path, monkeypatch):
    config = configure("", workload=str(example(tmp_path)), images=40, stop__max_epochs=1)
    real = loop.run
    monkeypatch.setattr(loop, "run", lambda *given: replace(real(*given), stop_reason="sigterm"))
    with pytest.raises(SystemExit, match="ended by sigterm; the same command goes on"):
        size.trained(config)


@pytest.mark.parametrize("name", ["adrenal", "slices"])
def test_a_workload_of_real_data_needs_its_data(name, tmp_path):
    with pytest.raises(InputError, match=f"--workload {name} needs --data, .* got none"):
        size.DATA[name].config(name, 500, tmp_path)


def test_the_u_net_is_trained_at_one_rate_on_the_slices_asked_for(tmp_path):
    config = size.DATA["slices"].config("slices", 500, tmp_path, tmp_path)
    assert config.settings.slices == 500
    assert (config.optim.decay_epochs, config.stop.monitor, config.stop.patience_epochs) == ((), "dice", 92)


def test_thresholds_are_medians_over_seeds():
    rows = [row(480, "strong", 1, 32, 200.0, seed=seed) for seed in range(3)]
    rows += [row(480, "weak", 2, 64, count, seed=seed) for seed, count in enumerate((150.0, 160.0, 250.0))]
    assert size.thresholds(rows) == {480: {2: pytest.approx(1.5)}}
