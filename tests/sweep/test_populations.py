"""The runs of a batch train together after a comparison, and one by one after a failure."""

import dataclasses

import pytest

from gmmae.config.rules import ConfigError
from gmmae.config.schema import changed
from gmmae.sweep.grid import SweepConfig
from tests.sweep.fake_runs import grid


@pytest.fixture
def config() -> SweepConfig:
    return grid(scaling=("strong", "weak"), devices=(2,), seeds=(0, 1), jobs=1, train_together="auto")


def populations(fake) -> list[str]:
    """The names of the jobs that computed several runs."""
    return sorted(path.name for path in (fake.root / "runs").glob("population-batch*-*"))


def test_batches_are_compared_from_the_smallest_on(fake, config):
    fake.wish({"batch-32": "3", "batch-64": "2"})
    code, watch = fake.sweep(config)
    assert code == 0
    assert populations(fake) == ["population-batch32-1", "population-batch64-1"]
    assert {name: record.path for name, record in fake.records().items()} == {name: name for name in fake.records()}
    assert [line for line in watch.lines if line.startswith("batch")] == [
        "batch 32: runs train together; 2 together are 3 times as fast",
        "batch 64: runs train together; 2 together are 2 times as fast",
    ]
    assert {record.outcome for record in fake.records().values()} == {"max_epochs"}
    assert len(fake.records()) == 4


def test_the_first_batch_that_gains_too_little_ends_the_comparisons(fake, config):
    fake.wish({"batch-32": "1.2"})
    code, watch = fake.sweep(config)
    assert code == 0
    assert len(fake.records()) == 4
    assert not populations(fake)
    assert not any(line.startswith("batch 64") for line in watch.lines)
    assert [name[-1] for name in watch.begun] == ["0", "0", "1", "1"], "an interrupted sweep has complete seeds"


def test_a_batch_whose_compilation_takes_longer_than_it_saves_trains_one_by_one(fake, config):
    # Two runs of at most four epochs save 2 (1 - 1/3) s · 4 · 0.25 = 1.3 s, and two programs take 3 s.
    fake.wish({"batch-32": "3 slow compiler", "batch-64": "3"})
    code, watch = fake.sweep(config)
    assert code == 0
    assert populations(fake) == ["population-batch64-1"]
    assert "batch 32: runs train one by one; 2 together are 3 times as fast" in watch.lines


def test_a_resumed_sweep_does_not_compare_again(fake, config):
    fake.wish({"batch-32": "1.2"})
    fake.sweep(config)
    fake.forget()
    fake.sweep(dataclasses.replace(config, seeds=(0, 1, 2)))
    assert "batch-32" not in fake.events("start")


@pytest.mark.parametrize("wish", ["crash", "bad", "segfault"])
def test_a_comparison_that_fails_leaves_runs_one_by_one(fake, config, wish):
    fake.wish({"batch-32": wish})
    code, watch = fake.sweep(config)
    assert code == 0
    assert len(fake.records()) == 4
    assert not populations(fake)
    assert any("batch 32: the comparison failed" in line for line in watch.lines)


def test_the_runs_of_a_failed_population_are_tried_one_by_one(fake, config):
    fake.wish({"batch-32": "3", "batch-64": "0.5", "strong-n2-seed1": "crash"})
    code, watch = fake.sweep(config)
    assert code == 4
    outcomes = {name: record.outcome for name, record in fake.records().items()}
    assert outcomes.pop("strong-n2-seed1") == "crashed"
    assert set(outcomes.values()) == {"max_epochs"}
    assert any("population-batch32-1: its runs are tried one by one, exit code 1" in line for line in watch.lines)


def test_on_trains_together_without_a_comparison_and_off_never(fake, config):
    fake.sweep(dataclasses.replace(config, train_together="on"))
    assert populations(fake) == ["population-batch32-1", "population-batch64-1"]
    assert "batch-32" not in fake.events("start")
    fake.root = fake.root.with_name("off")
    fake.sweep(dataclasses.replace(config, train_together="off"))
    assert len(fake.records()) == 4
    assert not populations(fake)


def test_places_of_a_sweep_share_a_population(fake, config):
    fake.sweep(dataclasses.replace(config, train_together="on", jobs=2, seeds=(0, 1, 2)))
    assert populations(fake) == [f"population-batch{batch}-{i}" for batch in (32, 64) for i in (1, 2)]
    assert len(fake.records()) == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "measured"},
        {"executor": "slurm"},
        {"run_time_limit_s": 5.0},
        {"run": changed(SweepConfig().run, stop__time_limit_s=5.0)},
        {"run": changed(SweepConfig().run, stop__validate_every_steps=5)},
        {"run": changed(SweepConfig().run, parallel__deterministic=True)},
    ],
    ids=str,
)
def test_where_runs_must_train_alone(changes):
    assert SweepConfig(**changes).alone_because
    with pytest.raises(ConfigError, match="train_together must be auto or off"):
        SweepConfig(**changes, train_together="on")
