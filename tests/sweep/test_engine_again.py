"""The engine called again, with a small program in the place of a run: checkpoints, work directories, interruptions."""

import dataclasses
import os
import signal
import socket
from pathlib import Path

import pytest

from gmmae.config.schema import Config, StopConfig, changed
from gmmae.config.toml import to_toml
from gmmae.sweep import engine
from gmmae.sweep.grid import RunKey
from gmmae.sweep.runs import CRASHED, SweepDir
from gmmae.system.errors import InputError
from gmmae.system.files import write_text
from gmmae.training.records import to_json, write_history
from gmmae.workloads.registry import configuration
from tests.small import small
from tests.sweep.fake_runs import NAMES, PATHS, Fake, Watch, grid, without_clocks
from tests.waiting import DEADLINE_S, wait_until

# Checkpoints


def checkpoints(fake: Fake) -> list[str]:
    return sorted(path.parent.name for path in fake.root.glob("runs/*/checkpoints") if any(path.iterdir()))


def test_the_checkpoints_of_runs_that_ended_by_themselves_are_removed(fake):
    fake.wish({"weak-n2-seed0": "diverge", "linear-n2-seed0": "lie"})
    fake.sweep(grid(devices=(1, 2)))
    ends = {name: record.outcome for name, record in fake.records().items()}
    assert (ends["weak-n1-seed0"], ends["weak-n2-seed0"], ends["linear-n2-seed0"]) == ("max_epochs", "diverged", CRASHED)
    assert checkpoints(fake) == ["linear-n2-seed0"]


def test_checkpoints_stay_where_they_are_to_be_kept(fake):
    fake.sweep(grid(devices=(1,), keep_checkpoints=True))
    assert checkpoints(fake) == ["weak-n1-seed0"]
    fake.sweep(grid(devices=(1,)))
    assert checkpoints(fake) == []


def test_checkpoints_that_a_killed_sweep_had_no_time_to_remove_are_removed_by_the_next_call(fake, monkeypatch):
    """Killed between a run's record and the removal."""
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_remove_checkpoints", lambda *_: None)
        fake.sweep(grid(devices=(1,)))
    assert checkpoints(fake) == ["weak-n1-seed0"]
    fake.forget()
    assert fake.sweep(grid(devices=(1,)))[0] == 0
    assert (checkpoints(fake), fake.events("start")) == ([], [])


def test_a_raised_limit_begins_again_without_checkpoints_and_says_so(fake):
    config = grid(scaling=("weak",), devices=(2,))
    fake.sweep(config)
    (SweepDir(fake.root).run("weak-n2-seed0").root / "trace").touch()
    code, watch = fake.sweep(dataclasses.replace(config, run=Config(stop=StopConfig(max_epochs=5))))
    assert code == 0
    assert watch.lines[0] == ("weak-n2-seed0 starts again: its checkpoints were removed when it ended, see keep_checkpoints")
    assert not (SweepDir(fake.root).run("weak-n2-seed0").root / "trace").exists()


def test_a_raised_limit_goes_on_from_checkpoints_that_were_kept(fake):
    config = grid(scaling=("weak",), devices=(2,), keep_checkpoints=True)
    fake.sweep(config)
    (SweepDir(fake.root).run("weak-n2-seed0").root / "trace").touch()
    _, watch = fake.sweep(dataclasses.replace(config, run=Config(stop=StopConfig(max_epochs=5))))
    assert not any("starts again" in line for line in watch.lines)
    assert (SweepDir(fake.root).run("weak-n2-seed0").root / "trace").exists()


def test_a_run_of_another_versions_rule_is_refused(fake):
    """A batch of 640 on 32 devices, but 32 times the learning rate, where 640 / 32 = 20."""
    config = grid(scaling=("linear",), devices=(32,))
    fake.wish({"linear-n32-seed0": "clipped"})
    fake.sweep(config)
    path = SweepDir(fake.root).record(RunKey("linear", 32, 0))
    with pytest.raises(InputError) as caught:
        fake.sweep(config)
    message = str(caught.value)
    assert message.startswith(f"{path} must have its strategy's batch and learning rate, 640 and 0.021; got 640 and 0.0336, ")
    assert str(SweepDir(fake.root).run("linear-n32-seed0").root) in message


# The work directory


def test_a_second_sweep_on_the_same_work_directory_is_refused_while_the_first_runs(fake):
    class Second(Watch):
        error = ""

        def started(self, name):
            with pytest.raises(InputError) as caught:
                engine.sweep(grid(devices=(1,)), fake.root, Watch(), samples=640)
            self.error = str(caught.value)

    code, second = fake.sweep(grid(devices=(1,)), display=Second())
    assert code == 0
    assert second.error == (
        f"workdir must be worked on by one sweep at a time; got {fake.root}, which process "
        f"{os.getpid()} on {socket.gethostname()} holds: wait for it, end it, or give another with --workdir"
    )


@pytest.fixture
def claimed(tmp_path):
    """A work directory with the configuration of a sweep and nothing else."""
    root = tmp_path / "sweep"
    root.mkdir()
    (root / "sweep.toml").write_text(to_toml(grid()))
    return root


OTHERS = {
    "run.loss": (grid(run=changed(configuration(), loss="mae")), 'run.loss was "msle", now "mae"'),
    "mode": (grid(mode="measured", jobs=1), 'mode was "virtual", now "measured"'),
    "more than three": (grid(run=small(parallel__devices="all")), "; and "),
}


@pytest.mark.parametrize(("config", "part"), OTHERS.values(), ids=OTHERS.keys())
def test_the_work_directory_of_another_sweep_is_refused_and_left_as_it_is(claimed, config, part):
    before = (claimed / "sweep.toml").read_text()
    with pytest.raises(InputError) as caught:
        engine.sweep(config, claimed, Watch(), samples=640)
    message = str(caught.value)
    assert message.startswith(f"workdir must hold a sweep of the same runs; got {claimed} where ")
    assert part in message
    assert message.endswith(": give another --workdir")
    assert message.count(" was ") <= 3
    assert (claimed / "sweep.toml").read_text() == before


def test_a_broken_saved_configuration_is_refused(claimed):
    (claimed / "sweep.toml").write_text("a b")
    with pytest.raises(InputError, match=r"sweep\.toml must be TOML"):
        engine.sweep(grid(), claimed, Watch(), samples=640)


def test_a_larger_grid_computes_what_is_new_only(fake):
    assert fake.sweep(grid(devices=(1, 2)))[0] == 0
    fake.forget()
    code, watch = fake.sweep(grid(devices=(4, 2, 1), seeds=(0,), run_time_limit_s=100.0, jobs=1))
    assert (code, watch.begun) == (0, ["weak-n4-seed0", "linear-n4-seed0"])
    assert sorted(fake.records()) == sorted(NAMES)
    assert "devices = [4, 2, 1]" in SweepDir(fake.root).config.read_text()


def test_a_raised_limit_goes_on_with_the_runs_that_it_had_ended_only(fake):
    fake.wish({"weak-n2-seed0": "diverge"})
    assert fake.sweep(grid(devices=(1, 2)))[0] == 0
    fake.forget()
    longer = Config(stop=StopConfig(max_epochs=5))
    code, watch = fake.sweep(grid(devices=(1, 2), run=longer, jobs=1))
    assert (code, watch.begun) == (0, ["weak-n1-seed0", "linear-n2-seed0"])
    assert "max_epochs = 5" in SweepDir(fake.root).config.read_text()


@pytest.mark.parametrize(("patience", "begun"), [(2, []), (3, ["weak-n1-seed0"])])
def test_a_changed_patience_judges_the_runs_that_stalled_again(fake, patience, begun):
    """Each loss is a sixth of the one before: two epochs gain 35 of 36, not 99 %, so a patience of 2 ends after three."""
    stop = StopConfig(max_epochs=4, patience_epochs=2, min_relative_improvement=0.99)
    config = grid(scaling=("weak",), devices=(1,), keep_checkpoints=True, run=Config(stop=stop))
    assert fake.sweep(config)[0] == 0
    folder, record = SweepDir(fake.root), fake.records()["weak-n1-seed0"]
    assert record.record is not None
    run, stalled = folder.run(record.path), dataclasses.replace(record.record, stop_reason="stalled", epochs=3)
    write_history(run.history, run.read_rows()[:3])
    write_text(run.record, to_json(stalled))
    write_text(folder.record(record.key), to_json(dataclasses.replace(record, outcome="stalled", record=stalled)))
    fake.forget()
    _, watch = fake.sweep(dataclasses.replace(config, run=Config(stop=dataclasses.replace(stop, patience_epochs=patience))))
    assert watch.begun == begun


def test_a_new_run_on_a_known_path_gets_its_record_from_it(fake):
    assert fake.sweep(grid(scaling=("weak",), devices=(1,)))[0] == 0
    assert fake.sweep(grid(scaling=("weak", "strong"), devices=(1, 2)))[0] == 0
    strong = fake.records()["strong-n2-seed0"]
    assert strong.path == "weak-n1-seed0"
    assert strong.record is not None
    assert (strong.record.device_batch, strong.record.epochs) == (16, 4)


@pytest.mark.parametrize("place", ["/proc/sweep", "{file}/sweep"])
def test_a_work_directory_that_cannot_be_written_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("")
    root = Path(place.format(file=tmp_path / "file"))
    with pytest.raises(InputError) as caught:
        engine.sweep(grid(), root, Watch(), samples=640)
    message = str(caught.value)
    assert message.startswith(f"workdir must be a folder that can be written; got {root} (")
    assert message.endswith("): give another with --workdir")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_work_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=r"got .* \(Permission denied\)"):
        engine.sweep(grid(), tmp_path / "sweep", Watch(), samples=640)


# Interruptions


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_an_interrupted_sweep_ends_its_runs_and_the_next_call_completes_it(fake, undisturbed, number, code):
    fake.wish({"weak-n2-seed0": "hang"})

    class Interrupting(Watch):
        """When the third run starts, one is done, and another hangs until it gets a signal."""

        def started(self, name):
            super().started(name)
            if name == "linear-n2-seed0":
                wait_until(lambda: fake.events("hang"))
                os.kill(os.getpid(), number)

    found, watch = fake.sweep(grid(), display=Interrupting())
    assert found == code
    assert engine.interrupted(found)
    assert watch.states["weak-n2-seed0"] == "interrupted"
    assert fake.events("sigterm") == ["weak-n2-seed0"]
    assert "weak-n2-seed0" not in fake.records()
    assert {"weak-n1-seed0", "linear-n1-seed0"} <= set(fake.records())
    assert not {"weak-n4-seed0", "linear-n4-seed0"} & set(fake.events("start"))
    assert watch.lines[-1] == "the same command continues the sweep"
    assert "not computed" in watch.lines[-2]
    fake.wish({})
    assert fake.sweep(grid())[0] == 0
    assert without_clocks(fake.records()) == without_clocks(undisturbed[0].records())


def test_sigterm_to_a_sweeping_process_is_exit_code_143(fake):
    fake.wish({"weak-n1-seed0": "hang"})
    process = fake.start(grid(devices=(1,)))
    wait_until(lambda: fake.events("hang"))
    process.terminate()
    printed, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143, printed
    assert fake.records() == {}
    assert fake.orphans() == []
    fake.wish({})
    assert fake.sweep(grid(devices=(1,)))[0] == 0
    assert sorted(fake.records()) == ["linear-n1-seed0", "weak-n1-seed0"]


@pytest.mark.slow
def test_a_sweeping_process_killed_twice_loses_and_repeats_nothing(fake, undisturbed):
    """Each time two runs hang in the middle, the only ones left to run at that moment, when SIGKILL comes."""
    for hanging, done in (
        (("weak-n2-seed0", "linear-n2-seed0"), {"weak-n1-seed0", "linear-n1-seed0"}),
        (("linear-n4-seed0", "weak-n4-seed0"), {"weak-n1-seed0", "linear-n1-seed0", "weak-n2-seed0", "linear-n2-seed0"}),
    ):
        fake.wish(dict.fromkeys(hanging, "hang"))
        process = fake.start(grid())
        wait_until(lambda names=hanging: set(names) <= set(fake.events("hang")))
        assert sorted(fake.orphans()) == sorted(hanging)  # they live, and would be orphans
        process.kill()
        process.communicate(timeout=DEADLINE_S)
        wait_until(lambda: not fake.orphans())
        assert set(fake.records()) == done
    fake.wish({})
    assert fake.sweep(grid())[0] == 0
    assert without_clocks(fake.records()) == without_clocks(undisturbed[0].records())
    assert sorted(fake.events("end")) == sorted([*PATHS, "step-times-n1"])
    starts = fake.events("start")
    assert {name: starts.count(name) for name in PATHS} == dict.fromkeys(PATHS, 2) | {"weak-n1-seed0": 1}
    assert fake.orphans() == []
