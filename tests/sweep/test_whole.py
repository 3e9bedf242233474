"""Whole sweeps of small runs, with the program that runs run in earnest."""

import dataclasses
import os
import signal

import pytest

from gmmae.config.schema import changed
from gmmae.multihost import environment
from gmmae.sweep import engine, step_times
from gmmae.sweep.grid import SweepConfig, TimingConfig, run_config, run_keys
from gmmae.sweep.runs import CRASHED, SweepDir
from gmmae.training import fingerprint, loop
from tests.small import CHEAP, Recorder, small
from tests.sweep.fake_runs import Watch

RUN = small(parallel__devices="all", stop__max_epochs=2, checkpoint__every_epochs=5, **CHEAP)
TIMING = TimingConfig(warmup_steps=1, steps=2, blocks=2)


def comparable(record):
    clocks = {"clocks", "git_commit", "run_id"}
    return {key: value for key, value in dataclasses.asdict(record).items() if key not in clocks and "loss" not in key}


@pytest.mark.slow
def test_a_sweep_of_real_runs_has_the_results_of_each_run_alone_and_the_step_times_of_its_projection(tmp_path, monkeypatch):
    """Two strategies on one and on two virtual devices: strong-n1, which three runs share, and weak-n2."""
    config = SweepConfig(scaling=("strong", "weak"), devices=(1, 2), timing=TIMING, run=RUN)
    folder = SweepDir(tmp_path / "sweep")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")  # the second run then compiles half as much
    shown = Watch()
    assert engine.sweep(config, folder.root, shown, samples=22) == 0, shown.lines
    assert shown.lines[0] == "4 runs: 0 done, 4 to compute, 2 of them different"
    assert "4 runs: 4 max_epochs" in shown.lines
    for key in run_keys(config):
        run = run_config(config, key)
        run = changed(run, parallel__devices=environment.default_cpu_devices(run))
        alone = loop.run(run, tmp_path / key.name, Recorder())
        [found] = [record for record in folder.read_all(config) if record.key == key]
        assert found.record is not None
        assert found.outcome == alone.stop_reason
        assert comparable(found.record) == comparable(alone)
        for name in ("final_train_loss", "final_val_loss", "best_val_loss"):
            assert getattr(found.record, name) == pytest.approx(getattr(alone, name), rel=1e-6)
        assert set(found.record.clocks) == set(alone.clocks)
    assert sorted(path.name for path in (folder.root / "runs").iterdir()) == [
        "queue.txt", "step-times-n1", "strong-n1-seed0", "weak-n2-seed0",
    ]  # fmt: skip
    # Batches a device: 8 of strong on 1 and of weak, 4 of strong on 2; validation: 6 volumes on 1, 3 on 2.
    times = step_times.read(folder.step_times(1))
    assert times is not None
    assert (times.devices, times.failed, times.oversubscribed) == (1, {}, False)
    assert [[row.samples for row in rows] for rows in (times.train, times.validation)] == [[4, 8], [3, 6]]


@pytest.mark.slow
def test_runs_of_one_process_are_those_of_new_ones_to_the_bit_also_after_a_kill_in_the_third(tmp_path):
    """Nothing of a run reaches the next one, whether it goes on or not."""
    scaling = ("strong", "weak", "linear-warmup")
    run = small(parallel__devices="all", stop__max_epochs=40, checkpoint__every_epochs=2, checkpoint__min_interval_s=0.0)
    config = SweepConfig(scaling=scaling, devices=(2,), timing=TIMING, run=changed(run, log__tensorboard=True))
    last = SweepDir(tmp_path / "one").run("linear-warmup-n2-seed0")

    class Killer(Watch):
        killed = 0

        def running(self, states):
            super().running(states)
            attempt = SweepDir(tmp_path / "one").read_attempt(last.root.name)
            if attempt and not self.killed and len(last.read_rows()) >= 3:
                os.kill(attempt.pid, signal.SIGKILL)
                self.killed += 1

    shown = Killer()
    assert engine.sweep(config, tmp_path / "one", shown, samples=22) == 0, shown.lines
    assert shown.killed
    assert any(line.startswith(f"{last.root.name} has lost its process, killed by SIGKILL") for line in shown.lines)
    assert "resumed after epoch" in (last.root / "log.txt").read_text()
    for name in scaling:
        alone = dataclasses.replace(config, scaling=(name,))
        assert engine.sweep(alone, tmp_path / name, Watch(), samples=22) == 0
        rows = [SweepDir(tmp_path / folder).run(f"{name}-n2-seed0").read_rows() for folder in ("one", name)]
        one, new = ([[value for key, value in row._asdict().items() if not key.endswith("_s")] for row in of] for of in rows)
        assert one == new
        assert len(new) == 40


@pytest.mark.slow
def test_processes_that_load_other_data_than_the_sweep_began_with_train_nothing(tmp_path):
    config, data = SweepConfig(scaling=("strong",), devices=(1,), run=RUN), fingerprint.load(RUN)
    data = data._replace(digests=data.digests | {"train samples": "0"})
    assert engine.sweep(config, tmp_path, Watch(), samples=22, data=data) == engine.RUNS_FAILED
    [found] = SweepDir(tmp_path).read_all(config, 22)
    assert (found.outcome, found.record, "train samples" in found.message) == (CRASHED, None, True)
