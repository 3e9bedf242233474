"""The benchmarks' statistics, counts of operations and tables, against numbers worked manually."""

import math

import jax
import numpy as np
import pytest

from benchmarks import breakdown, cost, flops, target
from benchmarks.child import ROOT, ask
from benchmarks.limits import launched, least_bytes
from benchmarks.spread import Spread, array_distance, distance, exponent, ratios, spread
from gmmae.data.settings import DataConfig
from gmmae.models.settings import ModelConfig
from gmmae.training import compilation
from gmmae.workloads.settings import NodulesConfig
from tests.gpu_programs.checks import JAX_0_10, JAX_0_12
from tests.small import small

ABSENT_GPUS = (ROOT / "docs" / "measurements" / "absent_gpus.md").read_text(encoding="utf-8")


def test_spreads_ratios_distances_and_exponents():
    assert spread([4, 1, 2, 3]) == Spread(median=2.5, low=1.75, high=3.25)
    # A machine that is ten times slower in the second turn: the ratio is 2 in both.
    assert ratios([2.0, 20.0], [1.0, 10.0]) == Spread(2.0, 2.0, 2.0)
    assert ratios([3.0], [1.0, 7.0, 8.0]).median == 3.0, "fewer turns are compared with as many"
    assert distance([1.0, 9.0], [1.0, 10.0]) == pytest.approx(0.1)
    assert not any(distance([1.0, value], [1.0, 1.0]) <= 1e-4 for value in (math.nan, math.inf))
    assert exponent([1, 2, 4, 8], [5, 5, 5, 5]) == pytest.approx(0)
    assert exponent([1, 2, 3], [2, 8, 18]) == pytest.approx(2)


def test_a_distance_of_arrays_is_relative_to_the_norm_and_needs_the_same_arrays():
    # (3, 4) has norm 5; a difference of 0.5 in one entry is a tenth of it.
    expected = {"a": np.array([3.0, 4.0]), "b": np.ones(2)}
    assert array_distance({"a": np.array([3.0, 4.5]), "b": np.ones(2)}, expected) == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"\['b'\]"):
        array_distance({"a": np.ones(1)}, {"a": np.ones(1), "b": np.ones(1)})


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
    parameters = compilation.parameter_count(compilation.initial_state(compilation.prepare(TINY)).params)
    assert counts["optimiser"] == flops.ADAM * parameters
    # A second convolution needs its input's gradient too: 8³ → 6³ → 5³.
    counts = flops.of_step(small(model__filters=(3, 5), model__kernels=(3, 2)))
    assert counts["convolution 2"] == 3 * 2 * 8 * 5**3 * 2**3 * 3 * 5


def test_the_forward_product_is_what_xla_counts():
    # XLA counts the products of this convolution on its own; padding none, so the two agree to the additions of the first tap.
    def forward(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1, 1), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))

    shapes = jax.ShapeDtypeStruct((2, 6, 6, 6, 3), "float32"), jax.ShapeDtypeStruct((3, 3, 3, 3, 4), "float32")
    analysis = jax.jit(forward).lower(*shapes).compile().cost_analysis()
    assert analysis
    assert analysis["flops"] == pytest.approx(flops.convolution(2, 4, 3, 3, 4), rel=0.02)


PROGRAM = """HloModule jit_f

%fused (p: f32[2]) -> f32[2] {
  %p = f32[2] parameter(0)
  ROOT %a = f32[2] add(%p, %p)
}

%region_0.1_body (arg: (s32[], f32[2])) -> (s32[], f32[2]) {
  %arg = (s32[], f32[2]) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %one = s32[] constant(1)
  %x = f32[2] get-tuple-element(%arg), index=1
  %next = s32[] add(%i, %one)
  %y = f32[2] fusion(%x), kind=kLoop, calls=%fused
  %z = f32[2] custom-call(%y), custom_call_target="gemm"
  ROOT %out = (s32[], f32[2]) tuple(%next, %z)
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2] parameter(0)
  ROOT %w = f32[2] while(%x), condition=%region_1.2, body=%region_0.1_body
}
"""


def test_launches_are_what_computes_in_the_largest_body():
    """An addition, a fusion and a call; parameters, constants and tuples are none."""
    assert launched(PROGRAM) == 3
    assert launched("") == 0
    at_once = "%y = f32[2] fusion(%x), kind=kLoop, calls=%fused"
    in_two = "%y = f32[2] fusion-start(%x), kind=kCustom, calls=%fused\n  %w = f32[2] fusion-done(%y)"
    assert launched(PROGRAM.replace(at_once, in_two)) == 3, "started here and awaited there is one"


def test_least_bytes_by_hand():
    """Eight volumes of 8³ and their densities, 2·8·512; 3 filters of 3³ leave 6³, then 4³: 8·3·216 + 8·3·64; 100 parameters."""
    assert least_bytes(small(), 100) == 4 * (7 * 100 + 3 * (8192 + 5184 + 1536))


def test_a_part_s_rate_is_its_operations_over_its_time():
    # The product 2 · 2048³ in 0.1 s: 171.8 GFLOP/s. Of a step of 1 s, 1e9 operations in 0.25 s: 4 GFLOP/s, 2.3 % of that.
    seconds = {"optimiser": [0.5], "convolution 1": [0.25], breakdown.PRODUCT: [0.1]}
    seconds |= {breakdown.TRACED: [1.0], breakdown.STEP: [0.9]}
    measured = {"config": "c", "batch": 3, "flops": {"convolution 1": 10**9, "optimiser": 10**8}, "seconds": seconds}
    table = breakdown.table(measured)
    assert table.rows[0] == ("convolution 1", "250 (250 to 250)", "25.0", "1", "4", "2.3")
    shares = [("between operations", "25.0"), ("step, traced", "100.0"), ("step", "90.0")]
    assert [row[:3:2] for row in table.rows[-3:]] == shares


def test_an_operation_s_own_time_is_without_those_within_it():
    # A loop of 10 s with two operations of 3 and 4 s, the second of which has one of 1 s; then the first again.
    events = [("loop", 0, 10), ("a", 1, 3), ("b", 5, 4), ("c", 6, 1), ("a", 10, 2)]
    line = [breakdown.Event(name, start * 1e9, duration * 1e9) for name, start, duration in reversed(events)]
    own = {name: 0.0 for name, _, _ in events}
    for name, spent in breakdown.own_seconds([line, []]):
        own[name] += spent
    assert own == {"loop": 3, "a": 5, "b": 3, "c": 1}


@pytest.mark.slow
def test_every_part_of_a_step_is_found_in_the_compiled_program():
    _, alone = breakdown.epoch_program(small())
    _, together = breakdown.epoch_program(small(parallel__devices=2))
    assert set(alone.values()) == {*breakdown.PARTS.values(), breakdown.OTHER} - {"reduction", "convolution 3"}
    assert set(together.values()) == {*alone.values(), "reduction"}


def test_growth_is_a_power_of_the_value_and_for_the_edge_of_the_voxels():
    grown = {
        "batch": {"1": {"seconds": [0.1], "flops": 10**8}, "2": {"seconds": [0.2], "flops": 2 * 10**8}},
        "size": {"1": {"seconds": [0.1], "flops": 10**8}, "2": {"seconds": [0.8], "flops": 10**9}},
    }
    devices = {"1": {"seconds": [0.1]}, "4": {"seconds": [0.2]}}
    memory = {"m": {"host": 2.5e9}}
    once, growth = cost.tables({"compile": {"epoch": 1.25}, "memory": memory, "growth": grown, "devices": devices})
    assert [row[1] for row in once.rows] == ["1.2 s", "2.50 GB"]
    assert [row[-1] for row in growth.rows] == ["", "1.00", "", "1.00", "", "0.50"]


def test_the_page_of_absent_gpus_says_the_bounds_that_the_tests_of_gpu_programs_hold():
    modes = {"tf32": "TF32", "micro": "micro-batches of half a share", "exact": "exact, a shard"}
    assert JAX_0_10.keys() == JAX_0_12.keys()
    for (mode, gpus, hosts), old in JAX_0_10.items():
        new = JAX_0_12[mode, gpus, hosts]
        named = (modes.get(mode, mode), f"{gpus} on {hosts} hosts" if hosts > 1 else gpus)
        row = (*named, old.launches, new.launches, old.temporary_mb, new.temporary_mb, old.commands, new.commands)
        assert f"| {' | '.join(map(str, row))} |\n" in ABSENT_GPUS


@pytest.mark.parametrize(("reached", "shown"), [(True, "60.0"), (False, "not reached")])
def test_ratios_to_the_target_are_the_reference_s_over_ours(reached, shown):
    """A missed target is not a number of seconds."""
    ours = target._run("train.py", 10, 0.001, 20.0, True, 40.0)
    reference = target._run("reference", 20, 0.001, 60.0, reached, 60.0)
    table = target.table({"config": "c", "runs": [ours, reference]})
    assert table.rows[1][3:5] == (shown, "3.00")
    to_target = "to the target 3.00," if reached else "to the target unknown"
    assert to_target in table.notes[0]
    assert table.notes[0].endswith("an epoch 1.50, wall 1.50.")


def test_a_child_that_fails_ends_the_benchmark():
    with pytest.raises(SystemExit, match=r"^benchmarks\.no_such_module sing ended with 1$"):
        ask("benchmarks.no_such_module", "sing")
