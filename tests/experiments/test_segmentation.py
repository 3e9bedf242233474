"""What the study makes of predictions, and its baselines, on volumes made for the test."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from experiments import segmentation as study
from experiments.segmentation import Judged
from gmmae.data.patches import slices
from gmmae.data.volumes import NativeNodule
from gmmae.workloads import segmentation as workload
from gmmae.workloads import settings

FLIPS = [(), (1,), (2,), (1, 2)]


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


def test_flips_are_taken_back():
    """A network that finds nothing but the image gives the image, whichever way it was flipped."""
    patches = slices([volume()], size=8, jitter=4, empty=True)
    data = settings.PatchConfig(shape=8, jitter=4)

    def describe(samples: Any) -> Any:
        return {"probabilities": np.asarray(workload.crop_and_augment(data, samples, None)[0][..., 0])}

    trained: Any = SimpleNamespace(config=SimpleNamespace(settings=SimpleNamespace(data=data)), describe=describe)
    plain = study.probabilities(trained, patches, [()])
    assert len(np.unique(plain)) > 3
    np.testing.assert_allclose(study.probabilities(trained, patches, FLIPS), plain, rtol=1e-6)


def test_an_opening_leaves_the_component_at_the_nodule():
    one = volume()
    above = one.values > -500
    found = study.opened(one, above)
    assert found[one.mask > 0].mean() > 0.8
    assert not found[:, 11:].any()
    assert not found[:, 7, 10:].any()
    assert not study.opened(one, one.values > 1000).any()


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


def test_the_dice_of_the_slices_that_hold_nodule_leaves_out_what_is_found_in_others():
    mask = volume().mask > 0
    everywhere = np.broadcast_to(mask[1], mask.shape)
    assert study.judge(everywhere, mask) == Judged(1.0, 0.5)


def test_a_summary_has_a_line_for_each_method_and_category():
    methods = (*study.NETWORKS, *study.BASELINES)
    dices = {**dict.fromkeys(methods, 0.5), **{f"{name}_whole": 0.25 for name in methods}}
    rows = [{"patient": f"P{i}", "category": "solid" if i else "part-solid", **dices, "unet": i / 4} for i in range(5)]
    lines = study.summary(rows)
    assert len(lines) == len(methods) * 2 * 3
    first = next(line for line in lines if (line["method"], line["slices"], line["category"]) == ("unet", "with nodule", "all"))
    assert (first["nodules"], first["mean"], first["median"]) == (5, 0.5, 0.5)
    assert float(first["low"]) < 0.5 < float(first["high"])
    alone = next(line for line in lines if (line["method"], line["category"]) == ("unet", "part-solid"))
    assert (alone["nodules"], alone["mean"]) == (1, pytest.approx(0.0))
    assert (alone["low"], alone["high"]) == ("", "")  # one patient has no interval
