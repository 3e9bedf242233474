"""The benchmarks' statistics, counts of operations and tables, against numbers worked manually."""

import math

import pytest

from benchmarks import breakdown, cost, flops
from benchmarks.child import ROOT
from benchmarks.limits import least_bytes
from benchmarks.spread import Spread, distance, exponent, ratios, spread
from gmmae.data.settings import DataConfig
from gmmae.models.settings import ModelConfig
from gmmae.training import preparation
from gmmae.workloads.settings import NodulesConfig
from tests.gpu_programs.checks import JAX_0_10, JAX_0_12
from tests.markdown import rows_of
from tests.small import small

ABSENT_GPUS = (ROOT / "docs" / "measurements" / "absent_gpus.md").read_text()


def test_spreads_ratios_distances_and_exponents():
    assert spread([4, 1, 2, 3]) == Spread(median=2.5, low=1.75, high=3.25)
    # A machine that is ten times slower in the second turn: the ratio is 2 in both.
    assert ratios([2.0, 20.0], [1.0, 10.0]) == Spread(2.0, 2.0, 2.0)
    assert ratios([3.0], [1.0, 7.0, 8.0]).median == 3.0, "fewer turns are compared with as many"
    assert distance([1.0, 9.0], [1.0, 10.0]) == pytest.approx(0.1)
    assert not any(distance([1.0, value], [1.0, 1.0]) <= 1e-4 for value in (math.nan, math.inf))
    assert exponent([1, 2, 4, 8], [5, 5, 5, 5]) == pytest.approx(0)
    assert exponent([1, 2, 3], [2, 8, 18]) == pytest.approx(2)


# One 2³ kernel with 3 filters on 5³ volumes: 4³ outputs, 192 numbers flattened; 2 latent numbers; 1 component.
TINY = small(
    settings=NodulesConfig(
        data=DataConfig(shape=5, samples=4, validation=1),
        model=ModelConfig(filters=(3,), kernels=(2,), latent_dim=2, components=1),
    ),
    optim__batch_size=7,
)


def test_operations_of_a_step():
    counts = flops.of_step(TINY)
    assert counts["convolution 1"] == 2 * (2 * 7 * 64 * 8 * 3)  # forward and kernel
    assert counts["dense"] == 3 * 2 * 7 * (192 * 2 + 2 * 10)
    assert counts["density and loss"] == 7 * 125 * (2 * 2 * 10 + 3)
    assert counts["optimiser"] == 14 * (3 * 8 + 3 + 192 * 2 + 2 + 2 * 10 + 10)
    parameters = preparation.parameter_count(preparation.initial_state(preparation.prepare(TINY)).params)
    assert counts["optimiser"] == flops.ADAM * parameters
    # A second convolution needs its input's gradient too: 8³ → 6³ → 5³.
    counts = flops.of_step(small(model__filters=(3, 5), model__kernels=(3, 2)))
    assert counts["convolution 2"] == 3 * 2 * 8 * 5**3 * 2**3 * 3 * 5


def test_least_bytes_by_hand():
    """Eight volumes of 8³ and their densities, 2·8·512; 3 filters of 3³ leave 6³, then 4³: 8·3·216 + 8·3·64; 100 parameters."""
    assert least_bytes(small(), 100) == 4 * (7 * 100 + 3 * (8192 + 5184 + 1536))


def test_a_part_s_rate_is_its_operations_over_its_time():
    # The product 2 · 2048³ in 0.1 s: 171.8 GFLOP/s. Of a step of 1 s, 1e9 operations in 0.25 s: 4 GFLOP/s, 2.3 % of that.
    seconds = {"optimiser": [0.5], "convolution 1": [0.25], breakdown.PRODUCT: [0.1]}
    seconds |= {breakdown.TRACED: [1.0], breakdown.STEP: [0.9]}
    measured = {"config": "c", "batch": 3, "flops": {"convolution 1": 10**9, "optimiser": 10**8}, "seconds": seconds}
    rows = rows_of(breakdown.table(measured))
    assert rows[0] == ("convolution 1", "250 (250 to 250)", "25.0", "1", "4", "2.3")
    shares = [("between operations", "25.0"), ("step, traced", "100.0"), ("step", "90.0")]
    assert [row[:3:2] for row in rows[-3:]] == shares


def test_growth_is_a_power_of_the_value_and_for_the_edge_of_the_voxels():
    grown = {
        "batch": {"1": {"seconds": [0.1], "flops": 10**8}, "2": {"seconds": [0.2], "flops": 2 * 10**8}},
        "size": {"1": {"seconds": [0.1], "flops": 10**8}, "2": {"seconds": [0.8], "flops": 10**9}},
    }
    devices = {"1": {"seconds": [0.1]}, "4": {"seconds": [0.2]}}
    memory = {"m": {"host": 2.5e9}}
    once, growth = cost.tables({"compile": {"epoch": 1.25}, "memory": memory, "growth": grown, "devices": devices})
    assert [row[1] for row in rows_of(once)] == ["1.2 s", "2.50 GB"]
    assert [row[-1] for row in rows_of(growth)] == ["", "1.00", "", "1.00", "", "0.50"]


def test_the_page_of_absent_gpus_says_the_bounds_that_the_tests_of_gpu_programs_hold():
    modes = {"tf32": "TF32", "micro": "micro-batches of half a share", "exact": "exact, a shard"}
    assert JAX_0_10.keys() == JAX_0_12.keys()
    for (mode, gpus, hosts), old in JAX_0_10.items():
        new = JAX_0_12[mode, gpus, hosts]
        named = (modes.get(mode, mode), f"{gpus} on {hosts} hosts" if hosts > 1 else gpus)
        row = (*named, old.launches, new.launches, old.temporary_mb, new.temporary_mb, old.commands, new.commands)
        assert f"| {' | '.join(map(str, row))} |\n" in ABSENT_GPUS
