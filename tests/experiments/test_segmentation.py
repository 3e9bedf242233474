"""What the study makes of predictions, and its baselines, on a volume made for the test."""

import numpy as np

from experiments import segmentation as study
from experiments.segmentation import Judged
from gmmae.data.patches import slices
from gmmae.data.volumes import NativeNodule
from gmmae.workloads import segmentation as workload
from gmmae.workloads import settings


def volume(centre=(1.0, 7.0, 5.0)):
    """A disc of nodule in the middle one of three slices, a vessel of one pixel, and a brighter block away from it."""
    z, y, x = np.ogrid[:3, :16, :12]
    mask = (np.square(y - 7) + np.square(x - 5) <= 9) & (z == 1)
    values = np.where(mask, -350, -900)
    values[:, 7, 8:] = -100
    values[:, 12:, :8] = 50
    return NativeNodule("a", "P", "solid", values.astype(np.int16), mask.astype(np.uint8), centre, (2.0, 1.0, 1.0), 6.5)


def test_what_was_found_in_slices_is_put_where_it_was_seen():
    one = volume()
    patches = slices([one], size=8, jitter=4, empty=True)
    seen = workload.crop_and_augment(settings.PatchConfig(shape=8, jitter=4), workload.samples_of(patches), None)[1]
    found = study.put_together(one, patches, np.asarray(seen == 1, float))
    inside = np.zeros_like(found)
    for corner, offset in zip(patches.corners, patches.offsets, strict=True):
        (y0, x0), (y1, x1) = np.maximum(corner[1:] + offset, 0), np.maximum(corner[1:] + offset + 8, 0)
        inside[corner[0], y0:y1, x0:x1] = True
    np.testing.assert_array_equal(found, inside & (one.mask > 0))
    assert 0 < found.sum() < one.mask.sum(), "some of it was not seen"


def test_baselines_are_judged_for_every_choice_and_chosen_by_training_nodules():
    found = study.candidates(volume())
    assert set(found) == set(study.BASELINES)
    assert len(found["ball"]) == 1
    assert len(found["threshold"]) == len(found["opened"]) == len(study.THRESHOLDS_HU)
    assert found["ball"][0] == study.judge(study.ball(volume(), 6.5), volume().mask > 0)
    assert found["ball"][0].held > 0.8 > found["ball"][0].whole > 0.4
    values = {name: [Judged(0.2, 0.2)] * 2 for name in study.BASELINES}
    better = {**values, "threshold": [Judged(0.1, 0.1), Judged(0.9, 0.0)]}
    assert study.best([values, better, values], np.array([0, 1]))["threshold"] == 1
    assert study.best([values, better, values], np.array([0, 2]))["threshold"] == 0
