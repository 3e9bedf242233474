"""What the benchmarks' tables say of numbers made up here."""

import pytest

from benchmarks import breakdown, cost, target
from benchmarks.child import ROOT, ask
from tests.gpu_programs.checks import JAX_0_10, JAX_0_12
from tests.small import small

MEASUREMENT = (ROOT / "MEASUREMENT.md").read_text(encoding="utf-8")


def test_a_part_s_rate_is_its_operations_over_its_time():
    # The product 2 · 2048³ in 0.1 s: 171.8 GFLOP/s. Of a step of 1 s, 1e9 operations in 0.25 s: 4 GFLOP/s, 2.3 % of that.
    seconds = {"optimiser": [0.5], "convolution 1": [0.25], breakdown.PRODUCT: [0.1]}
    seconds |= {breakdown.TRACED: [1.0], breakdown.STEP: [0.9]}
    found = {"config": "c", "batch": 3, "flops": {"convolution 1": 10**9, "optimiser": 10**8}, "seconds": seconds}
    table = breakdown.table(found)
    assert table.rows[0] == ("convolution 1", "250 (250 to 250)", "25.0", "1", "4", "2.3")
    assert table.rows[-3][:3] == ("between operations", "250", "25.0")
    assert table.rows[-2][:4] == ("step, traced", "1e+03 (1e+03 to 1e+03)", "100.0", "1.1")
    assert table.rows[-1][:3] == ("step", "900 (900 to 900)", "90.0")
    assert table.notes[0].startswith("The 2048² product in float32: 172 GFLOP/s.")


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
    found = {"compile": {"epoch": 1.25}, "memory": {"m": {"host": 2.5e9}}, "growth": grown, "devices": {}}
    found["devices"] = {"1": {"seconds": [0.1]}, "4": {"seconds": [0.2]}}
    once, growth = cost.tables(found)
    assert once.rows == (("compile: epoch", "1.2 s"), ("peak memory: m, host", "2.50 GB"))
    assert [row[-1] for row in growth.rows] == ["", "1.00", "", "1.00", "", "0.50"]
    assert growth.rows[0] == ("batch", "1", "100 (100 to 100)", "1", "")


def test_measurement_says_the_bounds_that_the_tests_of_gpu_programs_hold():
    modes = {"float32": "float32, TF32", "micro": "micro-batches of half a share", "exact": "exact, a shard"}
    assert JAX_0_10.keys() == JAX_0_12.keys()
    for (mode, gpus, hosts), old in JAX_0_10.items():
        new = JAX_0_12[mode, gpus, hosts]
        named = (
            mode if hosts > 1 and mode == "float32" else modes.get(mode),
            f"{gpus} on {hosts} hosts" if hosts > 1 else gpus,
        )
        row = (*named, old.launches, new.launches, old.temporary_mb, new.temporary_mb)
        if mode == "tf32":
            assert (old, new) == (JAX_0_10["float32", gpus, hosts], JAX_0_12["float32", gpus, hosts])
        else:
            assert f"| {' | '.join(map(str, row))} |\n" in MEASUREMENT


def run(title, epochs, spent_s, wall_s, *, reached=True):
    return target._run(title, epochs, 0.001, spent_s, reached, wall_s)


def test_ratios_to_the_target_are_the_reference_s_over_ours():
    found = {"config": "c", "runs": [run("train.py", 10, 20.0, 40.0), run("reference", 20, 60.0, 60.0)]}
    table = target.table(found)
    assert table.rows[1] == ("reference", "20", "0.001000", "60.0", "3.00", "60.0")
    assert table.notes[0] == "Reference over ours, medians: to the target 3.00, an epoch 1.50, wall 1.50."


def test_a_missed_target_is_not_a_number_of_seconds():
    found = {"config": "c", "runs": [run("train.py", 10, 20.0, 40.0), run("reference", 20, 60.0, 60.0, reached=False)]}
    table = target.table(found)
    assert table.rows[1][3:5] == ("not reached", "3.00")
    assert table.notes[0] == "Reference over ours, medians: to the target unknown, a run missed, an epoch 1.50, wall 1.50."


def test_a_child_that_fails_ends_the_benchmark():
    with pytest.raises(SystemExit, match=r"^benchmarks\.no_such_module sing ended with 1$"):
        ask("benchmarks.no_such_module", "sing")
