"""The step times that sweeps measure, with a small program in the place of a run."""

from gmmae.sweep import step_times
from gmmae.sweep.engine import RUNS_FAILED
from gmmae.sweep.grid import TimingConfig
from tests.sweep.fake_runs import grid


def throughputs(**changes):
    timing = TimingConfig(device_batches=(3, 8), global_batches=(2, 16))
    return grid(**{"mode": "throughput", "jobs": 1, "devices": (4, 2), "timing": timing} | changes)


def test_throughput_is_measured_once_on_each_number_of_devices(fake):
    """Weak: 3 and 8 a device. Strong: 16 in all, and 2 where that is one for each device."""
    assert fake.sweep(throughputs())[0] == 0
    assert fake.events("start") == ["step-times-n2", "step-times-n4"]
    folder = fake.folder
    rows = {n: [row.samples for row in found.train] for n in (2, 4) if (found := step_times.read(folder.step_times(n)))}
    assert rows == {2: [2, 6, 16], 4: [12, 16, 32]}
    assert fake.sweep(throughputs())[0] == 0
    assert len(fake.events("start")) == 2


def test_throughput_on_more_devices_than_the_base_batch_has_samples(fake):
    assert fake.sweep(throughputs(devices=(40,)))[0] == 0
    assert fake.folder.step_times(40).exists()


def test_failed_step_times_are_said_leave_the_runs_and_are_measured_again_by_the_next_call(fake):
    fake.wish({"step-times-n1": "segfault"})
    assert "step-times-n1 failed: no output" in fake.sweep(grid(devices=(1,)))[1].lines[-1]
    fake.wish({"step-times-n1": "crash"})
    code, watch = fake.sweep(grid(devices=(1,)))
    assert code == RUNS_FAILED
    assert watch.lines[-1] == f"step-times-n1 failed: RuntimeError: what it was ({fake.folder.log('step-times-n1')})"
    assert [record.outcome for record in fake.records().values()] == ["max_epochs"] * 2
    fake.forget()
    fake.wish({})
    assert fake.sweep(grid(devices=(1,)))[0] == 0
    assert fake.events("start") == ["step-times-n1"]


def test_a_batch_that_did_not_fit_is_not_tried_again_but_another_one_is_and_all_with_more_care(fake):
    """In the fake worker training of 64 fails."""

    def starts(batches, **changes):
        timing = TimingConfig(device_batches=(1,), global_batches=batches, **changes)
        assert fake.sweep(throughputs(devices=(2,), timing=timing))[0] == 0
        return len(fake.events("start"))

    assert [starts((64,)), starts((64,)), starts((32, 64)), starts((32,)), starts((32,), blocks=9)] == [1, 1, 2, 2, 3]


def test_what_failed_in_training_says_nothing_of_a_validation_of_that_size():
    row = step_times.Timing(32, 32, 1.0, 1.0, 1.0)
    timings = step_times.Timings(1, "cpu", False, 1, [row], [row], {"training of 64": "why"}, {}, {}, None)
    assert timings.tried == {"training of 32", "training of 64", "validation of 32"}
