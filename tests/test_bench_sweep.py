"""The benchmarks of a sweep: its programs, counted without compilation, and its estimated minutes, worked manually."""

import pytest
from jax.stages import Lowered

from benchmarks import sweep_estimate, sweep_programs
from benchmarks.sweep_estimate import Minutes, Run, Speed
from benchmarks.sweep_programs import DESCRIPTION, EPOCH, EPOCHS, INITIAL, VALIDATION, Program
from gmmae.cli.arguments import parse_sweep
from gmmae.sweep.grid import SweepConfig
from gmmae.training.run_cache import RunCache
from tests.small import small

GRID = SweepConfig(scaling=("weak", "linear"), devices=(1, 2), seeds=(0, 1), run=small(parallel__devices="all"))
"""Six runs at two batches. On one device both strategies are one."""


@pytest.fixture(scope="module")
def apart() -> list[Program]:
    compile_program = Lowered.compile
    found = list(sweep_programs.programs(GRID))
    assert Lowered.compile is compile_program, "programs can be compiled again"
    return found


def test_a_run_compiles_a_program_of_each_kind(apart):
    kinds = [INITIAL, EPOCH, VALIDATION, DESCRIPTION]
    runs = [f"{name}-seed{seed}" for seed in (0, 1) for name in ("weak-n1", "weak-n2", "linear-n2")]
    assert [(program.run, program.kind) for program in apart] == [(run, kind) for run in runs for kind in kinds]
    assert {(program.run[-8:-6], program.batch) for program in apart} == {("n1", 8), ("n2", 16)}


def test_a_run_of_several_epochs_a_dispatch_compiles_no_program_of_one():
    found = sweep_programs.programs_of("a", small(parallel__epochs_per_dispatch=2))
    assert [program.kind for program in found] == [INITIAL, EPOCHS, VALIDATION, DESCRIPTION]


def test_seeds_and_learning_rates_share_one_program_a_batch_and_a_process_compiles_it_once(apart):
    """Initial state, validation and description know no batch. No two programs that one process shares differ in their text."""
    texts: dict[tuple[str, int], set[str]] = {}
    for program in apart:
        texts.setdefault((program.kind, program.batch), set()).add(program.text)
    assert {len(of) for of in texts.values()} == {1}
    assert [kind for kind in sweep_programs.KINDS if texts.get((kind, 8)) != texts.get((kind, 16))] == [EPOCH]
    together = list(sweep_programs.programs(GRID, cache=RunCache()))
    kinds = [(INITIAL, 8), (EPOCH, 8), (VALIDATION, 8), (DESCRIPTION, 8), (EPOCH, 16)]
    assert [(program.kind, program.batch) for program in together] == kinds
    assert {program.text for program in together} == {program.text for program in apart}


def test_the_table_counts_runs_and_distinct_programs():
    apart = [
        Program("a", EPOCH, 8, "x"),
        Program("b", EPOCH, 8, "x"),
        Program("b", EPOCH, 16, "y"),
        Program("a", INITIAL, 8, "z"),
    ]
    assert sweep_programs.table(apart, apart[1:], "").rows == (
        (INITIAL, "all", "1", "1", "1", "1"),
        (EPOCH, "8", "2", "2", "1", "1"),
        (EPOCH, "16", "1", "1", "1", "1"),
        (EPOCH, "all", "2", "3", "2", "2"),
        ("all", "all", "2", "4", "3", "3"),
    )


SPEED = Speed(start=60, compile=120, reuse=6, step=1, sample=0.5, further_run=2, between_epochs=3)
RUNS = [Run(batch=4, steps=5, epochs=8), Run(batch=2, steps=10, epochs=6), Run(batch=4, steps=5, epochs=4)]


def test_minutes_by_hand():
    """Steps of 4 and 2 samples take 3 and 2 s. There are 18 epochs."""
    steps = (8 + 4) * 5 * 3 + 6 * 10 * 2
    assert sweep_estimate.in_processes(RUNS, SPEED) == Minutes(3.0, 0.0, steps / 60, 54 / 60)
    assert sweep_estimate.in_a_worker(RUNS, SPEED) == Minutes(1.3, 4.0, steps / 60, 54 / 60)


def test_runs_together_give_up_the_places_of_ended_ones_by_halves():
    """Two runs of batch 4 take 7 s a step for 4 epochs. Then one goes on, and its program is a third one."""
    steps = 4 * 5 * 7 + 4 * 5 * 3 + 6 * 10 * 2
    assert sweep_estimate.together(RUNS, SPEED) == Minutes(1.3, 6.0, steps / 60, 54 / 60)
    four = [Run(batch=4, steps=1, epochs=epochs) for epochs in (1, 3, 3, 3)]
    assert sweep_estimate.together(four, SPEED).steps == 3 * (1 + 4 * 2 + 3 * 2) / 60, "three are more than half of four"


def test_runs_take_the_steps_of_another_sweep_and_all_epochs_without_them():
    grid = parse_sweep(["--config", "sweep_paper", "--seeds", "0"], "").config
    found = sweep_estimate.runs(grid, 1844, {("strong", 1, 0): 378, ("weak", 8, 0): 8 * 1000})
    assert len(found) == 16
    assert found[0] == Run(batch=32, steps=58, epochs=7)
    assert {run.epochs for run in found[1:]} == {400}, "at most all epochs"


def test_the_study_has_the_steps_of_its_runs_that_reached_the_target():
    steps = sweep_estimate.steps_to_target()
    assert steps["strong", 1, 0] == 378
    assert not [key for key in steps if key[:2] == ("linear", 32)], "none of them reached it"


def test_fewer_starts_are_fewer_minutes():
    rows = sweep_estimate.table(parse_sweep(["--config", "sweep_paper"], "").config, 1844).rows
    totals = [int(row[-1]) for row in rows]
    assert totals[1] < totals[0] / 2
    assert totals[4] < totals[3] / 2
