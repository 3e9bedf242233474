from dataclasses import replace

import pytest

from gmmae.sweep.grid import RunKey
from gmmae.sweep.report.projection import EpochTime, Projection
from gmmae.system.errors import InputError
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS


@pytest.fixture
def timings(tmp_path):
    return sweeps.add_step_times(tmp_path, 1, STEPS, PASSES)


def record(scaling, devices):
    return sweeps.run_record(GRID, RunKey(scaling, devices, 0), "target_reached", 10, 0.001)


def epoch(projection, record):
    """Returns the projected epoch of a run with one stage."""
    (only,) = projection.stages(record)
    return only


@pytest.mark.parametrize(
    ("scaling", "devices", "expected"),
    [  # see sweeps.small
        ("strong", 1, EpochTime(8.0, 0.0, 2.0)),
        ("strong", 2, EpochTime(4.8, 16.0, 1.0)),
        ("weak", 2, EpochTime(4.0, 8.0, 1.0)),
        ("weak", 4, EpochTime(2.0, 6.0, 0.5)),
    ],
)
def test_an_epoch_is_its_steps_with_their_all_reduce_and_a_validation(timings, scaling, devices, expected):
    assert epoch(Projection(FLAT, timings, "float32"), record(scaling, devices)) == pytest.approx(expected)


def test_each_stage_of_a_run_whose_batch_grows_has_an_epoch_of_its_own(timings):
    """The batch of 32 is that of strong scaling above, and 64 that of weak scaling on 2 devices."""
    grown = replace(record("strong", 2), growth=[[6, 64]])
    first, second = Projection(FLAT, timings, "float32").stages(grown)
    assert first == pytest.approx((4.8, 16.0, 1.0))
    assert second == pytest.approx((4.0, 8.0, 1.0))


def test_a_faster_device_speeds_up_all_computation_and_no_communication(timings):
    # 32 samples in 0.25 s rather than 0.5 s: half of 4.8 and of 1.
    twice = replace(FLAT, reference_step_s=0.25)
    assert epoch(Projection(twice, timings, "float32"), record("strong", 2)) == pytest.approx((2.4, 16.0, 0.5))


def test_float64_doubles_the_gradient(timings):
    assert epoch(Projection(FLAT, timings, "float64"), record("strong", 2)).all_reduce_s == pytest.approx(32.0)


def test_what_is_not_measured_is_not_projected(timings):
    wide = timings._replace(validation=[sweeps.timing(8, 1, 0.1), *timings.validation])  # 8 of the 256 samples on each of 32
    with pytest.raises(InputError, match=r"^device batch must be measured, from 8 to 32; got 1"):
        Projection(FLAT, wide, "float32").stages(record("strong", 32))
    few = timings._replace(validation=timings.validation[:1])  # 64 of the 256 samples
    with pytest.raises(InputError, match="validation: device batch must be measured, from 64 to 64; got 256"):
        Projection(FLAT, few, "float32").stages(record("strong", 1))


def test_the_assumptions_name_what_the_times_rest_on(timings):
    text = Projection(FLAT, timings, "float32").assumptions()
    assert text.startswith("Projected to Flat (8 a node), not measured there: computation as measured on cpu in float32 (")
    assert "quartiles within 10.0 % of the medians" in text
    assert "α = 0 µs, β = 0.00196 GB/s inside a node" in text
    assert "no overlap" in text
    assert "scaled" not in text
    scaled = Projection(replace(FLAT, reference_step_s=1.04), timings, "float32").assumptions()
    assert "scaled to 1.04 s for a step of 32 samples" in scaled
