"""Real jobs of submitit's local executor, and whole sweeps of the small program of `test_sweep.py` by it."""

import os
import signal
import sys

import pytest

from gmmae.sweep.cluster.jobs import run_jobs
from gmmae.sweep.grid import SweepConfig
from gmmae.sweep.supervisor import NOT_STARTED, Job, describe, last_lines
from gmmae.system.errors import InputError
from tests.sweep.fake_runs import NAMES, Fake, grid, without_clocks
from tests.sweep.test_supervisor import DEAF, HOLD, POLITE, Calls, held, program
from tests.waiting import DEADLINE_S, locked, wait_until


def local(folder, jobs, *, at_once=4, grace_s=2.0, calls=None, **more):
    calls = calls or Calls()
    config = SweepConfig(executor="local", grace_s=grace_s)
    callbacks = {"on_start": calls.on_start, "on_end": calls.on_end} | more
    return run_jobs(jobs, config=config, folder=folder / "jobs", at_once=at_once, timed=False, **callbacks), calls


def job(folder, name, source, *arguments, time_limit_s=0.0):
    return Job(name, program(source, *arguments), folder / name / "log.txt", {"GIVEN": name}, time_limit_s)


@pytest.mark.slow
def test_every_job_has_its_own_end(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.chdir(tmp_path)
    jobs = [
        job(tmp_path, "fine", "print(os.environ['GIVEN'], os.environ['CUDA_VISIBLE_DEVICES'], os.getcwd())"),
        job(tmp_path, "raise", "raise ValueError('what it was')"),
        job(tmp_path, "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        Job("missing", (str(tmp_path / "nowhere"),), tmp_path / "missing.log", {}, 0.0),
        job(tmp_path, "late", POLITE, tmp_path / "lock", time_limit_s=2.0),
        job(tmp_path, "orphaned", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.5)"),
    ]
    ticks = []
    reason, calls = local(tmp_path, jobs, at_once=3, on_tick=lambda running: ticks.append([each.name for each, _ in running]))
    assert reason is None
    assert calls.started == [each.name for each in jobs]
    codes = {name: ended.returncode for name, ended in calls.ended.items()}
    assert codes == {"fine": 0, "raise": 1, "killed": -9, "missing": NOT_STARTED, "late": 7, "orphaned": -9}
    assert {name for name, ended in calls.ended.items() if ended.timed_out} == {"late"}
    assert calls.ended["late"].seconds >= 2.0
    assert last_lines(jobs[0].log) == f"fine 3 {tmp_path}"
    assert last_lines(jobs[1].log) == "ValueError: what it was"
    assert describe(calls.ended["missing"]).startswith("could not be started: ")
    assert "ended without a result, killed" in describe(calls.ended["orphaned"])
    assert any("late" in names for names in ticks)
    assert all(len(names) <= 3 for names in ticks)


def test_no_jobs_need_nothing(tmp_path):
    reason, calls = local(tmp_path, [])
    assert (reason, calls.started) == (None, [])
    assert not (tmp_path / "jobs").exists()


def test_a_job_that_somebody_ends_is_a_failure_and_no_interruption(tmp_path):
    lock, told = tmp_path / "lock", []

    def on_tick(running):
        if held(lock) and running and not told:
            [number] = {path.name.partition("_")[0] for path in (tmp_path / "jobs/local").glob("*_submitted.pkl")}
            told.append(os.kill(int(number), signal.SIGTERM))

    _, calls = local(tmp_path, [job(tmp_path, "a", POLITE, lock)], on_tick=on_tick)
    assert not calls.ended["a"].interrupted
    assert describe(calls.ended["a"]).endswith(" was cancelled")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "sigterm"), (signal.SIGINT, "sigint")])
def test_a_signal_ends_all_and_starts_no_more(tmp_path, number, reason):
    locks = {name: tmp_path / f"{name}.lock" for name in ("polite", "deaf", "never")}
    told = POLITE.replace("sys.exit(7)", "(print('told', flush=True), sys.exit(7))")
    sources = {"polite": told, "deaf": DEAF, "never": HOLD}
    jobs = [job(tmp_path, name, sources[name], lock) for name, lock in locks.items()]

    def on_tick(_):
        if held(locks["polite"]) and held(locks["deaf"]):
            os.kill(os.getpid(), number)

    found, calls = local(tmp_path, jobs, at_once=2, on_tick=on_tick)
    assert found == reason
    assert calls.started == ["polite", "deaf"]
    assert all(ended.interrupted for ended in calls.ended.values())
    assert sorted(calls.ended) == ["deaf", "polite"]
    assert last_lines(jobs[0].log) == "told"
    assert not locked(locks["polite"])
    assert not locked(locks["deaf"])
    assert not locks["never"].exists()


def test_an_exception_of_a_callback_leaves_no_job_behind(tmp_path):
    lock, before = tmp_path / "lock", signal.getsignal(signal.SIGTERM)

    def on_tick(_):
        if held(lock):
            raise RuntimeError("of the callback")

    with pytest.raises(RuntimeError, match="of the callback"):
        local(tmp_path, [job(tmp_path, "a", POLITE, lock)], on_tick=on_tick)
    assert not locked(lock)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("executor", ["local", "slurm"])
def test_missing_submitit_is_one_line_that_says_what_to_install(tmp_path, monkeypatch, executor):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError) as caught:
        Fake(tmp_path).sweep(grid(executor=executor))
    assert str(caught.value) == (
        "executor must be processes where submitit is missing; got no submitit: "
        "pip install -e '.[cluster]', or --executor processes"
    )


# Whole sweeps


@pytest.fixture
def fake(tmp_path):
    return Fake(tmp_path)


@pytest.mark.slow
def test_a_sweep_has_the_records_of_one_by_processes(fake, tmp_path_factory):
    plain = Fake(tmp_path_factory.mktemp("plain"))
    wishes = {"weak-n2-seed0": "crash"}
    for each in (fake, plain):
        each.wish(wishes)
    code, watch = fake.sweep(grid(executor="local"))
    wanted_code, wanted_watch = plain.sweep(grid())
    assert (code, watch.states) == (wanted_code, wanted_watch.states)
    assert sorted(fake.events("start")) == sorted(plain.events("start"))
    found, wanted = fake.records(), plain.records()
    crashed = found.pop("weak-n2-seed0"), wanted.pop("weak-n2-seed0")
    assert without_clocks(found) == without_clocks(wanted)
    for record, folder in zip(crashed, (fake, plain), strict=True):
        assert record.outcome == "crashed"
        assert record.message == f"exit code 1: what it was ({folder.root}/runs/weak-n2-seed0/log.txt)"
    fake.wish({})
    assert fake.sweep(grid(executor="local"), retry=True)[0] == 0
    assert sorted(fake.records()) == sorted(NAMES)


@pytest.mark.slow
def test_sigterm_to_a_sweeping_process_ends_its_cells_and_the_same_command_goes_on(fake):
    fake.wish({"weak-n1-seed0": "hang"})
    process = fake.start(grid(devices=(1,), executor="local"))
    wait_until(lambda: fake.events("hang"))
    process.terminate()
    printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143, printed
    assert "Traceback" not in printed
    assert fake.events("sigterm") == ["weak-n1-seed0"]
    assert (fake.records(), fake.orphans()) == ({}, [])
    fake.wish({})
    assert fake.sweep(grid(devices=(1,), executor="local"))[0] == 0
    assert sorted(fake.records()) == ["linear-n1-seed0", "weak-n1-seed0"]


@pytest.mark.slow
def test_the_cells_of_a_killed_sweep_die_with_it(fake):
    fake.wish({"weak-n1-seed0": "hang"})
    process = fake.start(grid(devices=(1,), executor="local"))
    wait_until(lambda: fake.events("hang"))
    assert fake.orphans() == ["weak-n1-seed0"]  # it lives, and would be one
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not fake.orphans())
    fake.wish({})
    assert fake.sweep(grid(devices=(1,), executor="local"))[0] == 0
