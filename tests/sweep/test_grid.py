import time
from pathlib import Path
from typing import Any

import pytest

from gmmae.cli.arguments import read_sweep
from gmmae.config.rules import ConfigError
from gmmae.config.schema import Config, changed, flatten, replaced
from gmmae.config.toml import to_toml
from gmmae.sweep.grid import (
    GRID_KEYS,
    MIN_CHECKPOINT_INTERVAL_S,
    RunKey,
    SlurmConfig,
    SweepConfig,
    run_config,
    run_keys,
)
from gmmae.sweep.runs import SweepDir
from tests.bad_values import require_refused

COUNTS = "one or more different numbers of at least 1"
BAD: dict[str, tuple[Any, str]] = {
    "mode": ("fast", "one of virtual, measured, throughput"),
    "scaling": (("weak", "weak"), "one or more, all different, of strong, weak, linear"),
    "devices": ((2, 2), COUNTS),
    "seeds": ((2**32,), "one or more different numbers of 0 to 4294967295"),
    "executor": ("lsf", "one of processes, slurm"),
    "jobs": (0, "at least 1"),
    "run_time_limit_s": (0.0, "positive"),
    "clusters": ((), "at least one"),
    "timing.device_batches": ((4, 4), COUNTS),
    "timing.global_batches": ((0,), COUNTS),
    "timing.warmup_steps": (-1, "at least 0"),
    "timing.steps": (0, "at least 1"),
    "timing.blocks": (0, "at least 1"),
    "slurm.partition": ("a b", "a name without spaces"),
    "slurm.account": (" a", "a name without spaces"),
    "slurm.qos": ("a b", "a name without spaces"),
    "slurm.timeout_min": (0, "at least 1"),
    "slurm.timeouts": (-1, "at least 0"),
    **{f"slurm.{key}": (0, "at least 1") for key in ("devices_per_node", "cpus_per_task", "mem_gb")},
    "slurm.array_parallelism": (0, "at least 1"),
    "slurm.setup": (("module load cuda", " "), "lines that are not empty"),
    "slurm.additional_parameters": (("--gres=gpu",), "options of sbatch as key=value"),
}
MORE_BAD = [
    *(("scaling", value, "one or more, all different, of strong, weak, linear") for value in ((), ("weak", "fast"))),
    *(("seeds", value, "one or more different numbers of") for value in ((), (3, 3), (-1,))),
    *(("slurm.additional_parameters", (option,), "options of sbatch") for option in ("=3", "two words", "")),
]


@pytest.mark.parametrize(("key", "value", "rule"), [*((key, *bad) for key, bad in BAD.items()), *MORE_BAD])
def test_a_bad_value_is_refused_by_key_rule_and_value(key, value, rule):
    require_refused(lambda: replaced(SweepConfig(), {key: value}), key, value, rule)


def test_every_key_of_the_sweep_has_a_bad_value_above():
    own = {key for key, _ in flatten(SweepConfig()) if not key.startswith("run.")}
    assert own - {"keep_checkpoints"} == BAD.keys()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timing.warmup_steps", 0),
        ("slurm.additional_parameters", ("exclude=node[1,2]", "exclusive=", "no-kill", "gres=gpu:a100:2")),
    ],
)
def test_what_a_rule_just_allows_is_taken(key, value):
    assert dict(flatten(replaced(SweepConfig(), {key: value})))[key] == value


@pytest.mark.parametrize("mode", ["measured", "throughput"])
def test_where_times_are_measured_one_job_runs_at_a_time(mode):
    with pytest.raises(ConfigError, match=rf"^jobs must be 1 .* mode = {mode}; got 2: use mode = virtual$"):
        SweepConfig(mode=mode, jobs=2)


GIVEN = {"scaling": "weak", "seed": 1, "parallel.devices": 2, "parallel.simulate_devices": 2}


@pytest.mark.parametrize("key", GRID_KEYS)
def test_what_the_grid_sets_must_not_be_given(key):
    with pytest.raises(ConfigError, match=rf"^run\.{key} must be left to the sweep, .*; got {GIVEN[key]!r}: remove it$"):
        replaced(SweepConfig(), {f"run.{key}": GIVEN[key]})


def test_toml_read_back_is_equal(tmp_path):
    slurm = SlurmConfig(setup=("module load cuda", 'echo "$HOSTNAME"'))
    config = SweepConfig(scaling=("sqrt", "weak"), seeds=(2, 0), run_time_limit_s=0.5, executor="slurm", slurm=slurm)
    (tmp_path / "sweep.toml").write_text(to_toml(config))
    assert read_sweep(tmp_path / "sweep.toml") == config


def test_runs_are_ordered_by_seed_then_devices_then_strategy():
    config = SweepConfig(scaling=("weak", "strong"), devices=(4, 1), seeds=(7, 0))
    assert [key.name for key in run_keys(config)] == [
        "weak-n1-seed7", "strong-n1-seed7", "weak-n4-seed7", "strong-n4-seed7",
        "weak-n1-seed0", "strong-n1-seed0", "weak-n4-seed0", "strong-n4-seed0",
    ]  # fmt: skip


# Groups, worked manually: the same seed, batch, and learning rates


def shared(config: SweepConfig):
    groups = SweepDir(Path("nowhere")).groups(config, 10_000)
    return {owner: [member.name for member in members] for owner, members in groups.items()}


@pytest.mark.parametrize("scaling", [("linear", "linear-warmup"), ("sqrt", "sqrt-warmup")])
def test_a_warmup_of_no_epochs_is_none(scaling):
    plain, warm = scaling
    config = SweepConfig(scaling=scaling, devices=(2,), run=changed(Config(), optim__scaling_warmup_epochs=0))
    assert shared(config) == {f"{plain}-n2-seed0": [f"{plain}-n2-seed0", f"{warm}-n2-seed0"]}


def test_ten_thousand_runs_are_divided_into_paths_at_once():
    """A comparison of every run with every other one took four minutes; this takes a tenth of a second.

    All strategies share a path of their seed on one device, and so does strong scaling on more.
    """
    scaling = ("strong", "weak", "linear", "linear-warmup", "sqrt", "sde")  # the last two differ in Adam's moments only
    config = SweepConfig(scaling=scaling, devices=tuple(range(1, 11)), seeds=tuple(range(170)))
    before = time.process_time()
    assert len(shared(config)) == 170 * (1 + 5 * 9)
    assert time.process_time() - before < 5


@pytest.mark.parametrize(("mode", "devices", "virtual"), [("virtual", "all", 4), ("measured", 4, None)])
def test_a_runs_run_has_its_strategy_seed_and_devices_and_all_else_from_the_sweep(mode, devices, virtual):
    base = changed(Config(), optim__batch_size=8, parallel__micro_batch_size=4)
    own = {"scaling": "linear", "seed": 3, "parallel__devices": devices, "parallel__simulate_devices": virtual}
    own |= {"checkpoint__min_interval_s": MIN_CHECKPOINT_INTERVAL_S, "checkpoint__at_end": False}
    assert run_config(SweepConfig(mode=mode, run=base), RunKey("linear", 4, 3)) == changed(base, **own)


def test_checkpoints_that_are_kept_are_written_at_the_end_and_as_often_as_a_run_says():
    base = changed(Config(), checkpoint__min_interval_s=0.0)
    run = run_config(SweepConfig(run=base, keep_checkpoints=True), RunKey("weak", 2, 0))
    assert run.checkpoint == base.checkpoint
