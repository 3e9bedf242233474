"""The page and the CSV files of sweeps of fixed records, as they were once read and found right; figures are in `plotting`.

A text that is removed from `golden` is written again by the test, which then fails, so that somebody reads it.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gmmae.config.schema import changed
from gmmae.sweep import step_times
from gmmae.sweep.grid import RunKey, SweepConfig, TimingConfig
from gmmae.sweep.report import page
from gmmae.sweep.runs import SweepDir
from tests import sweeps
from tests.sweep.report.conftest import add_times
from tests.sweep.report.test_outcome import FORECAST, PLAN
from tests.sweeps import FLAT, GRID

# Steps are a CPU's, so a cost stands only where a cluster names a step of its own device: not for `PRICED` itself.
PRICED = replace(FLAT, price_per_device_hour="USD 2.50", watts_per_device=300.0)
FAST = replace(PRICED, name="Fast", reference_step_s=0.25)
ODD = replace(FAST, name="Odd", reference_step_s=1.0, reference_batch=64, watts_per_device=None)
TWO = replace(GRID, scaling=("strong", "weak"), devices=(1, 2), seeds=tuple(range(8)))
ONE = replace(GRID, seeds=(0,))


def nearly_done(root):
    """36 runs, of which one has crashed and one is missing; a plan for two of three clusters."""
    add_times(root)
    (root / "plan.json").write_text(json.dumps(PLAN | {"clusters": dict.fromkeys(("Fast", "Flat", "Slow"), FORECAST)}))
    return sweeps.small(root)


def one_run(root):
    """No step times, so only epochs."""
    sweeps.reach(ONE, root, RunKey("strong", 1, 0), 3)
    return ONE


def no_run(root):
    return ONE


def no_target(root):
    config = replace(ONE, run=changed(ONE.run, stop__target=None))
    sweeps.add(config, root, RunKey("strong", 2, 0), "max_epochs", 4)
    return config


def all_missed(root):
    add_times(root)
    sweeps.add(ONE, root, RunKey("strong", 1, 0), "max_epochs", 9, 0.01)
    return ONE


def significant(root):
    """Eight seeds in which weak scaling takes 130 s and strong scaling 400 s; times that scatter, and one that failed."""
    calm = add_times(root, failed={"training of 64": "why"})
    busy = [row._replace(high_s=2.5 * row.median_s) for row in calm.train]
    step_times.write(SweepDir(root).step_times(1), calm._replace(train=busy))
    for seed in TWO.seeds:
        sweeps.reach(TWO, root, RunKey("weak", 2, seed), 10)
        sweeps.reach(TWO, root, RunKey("strong", 1, seed), 40)
    return TWO


def not_significant(root):
    """One seed of six the other way round, and one seed more of each side alone."""
    for seed, epochs in enumerate((40, 40, 40, 40, 5, 40)):
        sweeps.reach(TWO, root, RunKey("strong", 1, seed), epochs)
        sweeps.reach(TWO, root, RunKey("weak", 2, seed), 10)
    sweeps.reach(TWO, root, RunKey("strong", 1, 6), 1000)
    sweeps.reach(TWO, root, RunKey("weak", 2, 7), 1)
    add_times(root)
    return TWO


def time_limit(root, mode="virtual"):
    """Weak scaling: four of seven seeds reach the target, two are over the time limit, and one crashes."""
    config = replace(TWO, mode=mode, seeds=tuple(range(7)))
    add_times(root)
    for seed, outcome in enumerate((*["target_reached"] * 4, "timed_out", "timed_out", "crashed")):
        sweeps.add(config, root, RunKey("weak", 2, seed), outcome, 10)
        sweeps.add(config, root, RunKey("strong", 2, seed), "target_reached", 40, oversubscribed=True)
    return config


def time_limit_measured(root):
    return time_limit(root, "measured")


def capped_and_grown(root):
    """Weak scaling has 512 samples: what it asks for on 16 devices, and half of it on 32. A batch that grows has an arrow."""
    config = replace(ONE, scaling=("strong", "weak"), devices=(1, 16, 32))
    sweeps.add_step_times(root, 1, {1: 0.1, 2: 0.1, 16: 0.3, 32: 0.5, 64: 1.0}, {8: 0.1, 16: 0.2, 256: 2.0})
    for n in config.devices:
        sweeps.reach(config, root, RunKey("weak", n, 0), 10)
    grown = {"growth": [[8, 64]], "largest_batch": 64, "best_metrics": {"dice": 0.5}}
    sweeps.add(config, root, RunKey("strong", 32, 0), "target_reached", 10, **grown)
    return config


def throughput(root):
    """Strong: 100 · 36 / (4 · 16) = 56.25 %. Weak: 100 · 21 / 24 = 87.5 %."""
    for n, strong in ((1, 0.036), (4, 0.016)):
        times = {16 * n: 1e-3 * (20 + n), 32: strong}
        sweeps.add_step_times(root, n, times, oversubscribed=n > 1, failed={"training of 64": "out of memory"})
    return SweepConfig(mode="throughput", devices=(1, 4, 8), timing=TimingConfig(device_batches=(16,), global_batches=(32,)))


def throughput_without_one_device(root):
    config = throughput(root)
    (root / "step_times" / "step-times-n1.json").unlink()
    return config


CASES = [nearly_done, one_run, no_run, no_target, all_missed, significant, not_significant, time_limit, time_limit_measured]
CASES += [capped_and_grown, throughput, throughput_without_one_device]
NUMBER = re.compile(r"(-?\d+\.\d+(?:e-?\d+)?)")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_report_of_fixed_records_is_the_text_that_was_found_right(case, tmp_path):
    root, golden = tmp_path / "sweep", Path(__file__).parent / "golden" / f"{case.__name__}.txt"
    root.mkdir()
    page.write(case(root), root, [ODD, PRICED, FAST])
    report = root / "report"
    text = "\n".join(path.read_text() for path in [report / "report.md", *sorted(report.glob("*.csv"))])
    if not golden.exists():
        golden.write_text(text)
        pytest.fail(f"{golden} is new: read it")
    found, expected = (NUMBER.split(each) for each in (text, golden.read_text()))
    assert found[::2] == expected[::2]
    assert list(map(float, found[1::2])) == pytest.approx(list(map(float, expected[1::2])), rel=1e-9)
