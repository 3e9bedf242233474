"""A real file of four readers: the voxels that they enclose, and the mask that another program drew from the same file."""

from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction.dicom import Slice, Stack, stacks
from gmmae.data.lidc.consensus import consensus, draw, match
from gmmae.data.lidc.messages import read_message

NAME = "LIDC-IDRI-0069_R_1.nii.gz"
SPACING = (0.741, 0.741, 2.0)
DIRECTION = tuple(np.eye(3).ravel())


def agreed(share):
    """The consensus of the four readers. Only the positions of the slices are needed, and not their voxels."""
    message = read_message(Path(__file__).with_name("LIDC-IDRI-0069.xml"))
    lines = [line for nodule in message.nodules for line in nodule.outlines]
    places = sorted({line.z_mm: line.uid for line in lines}.items())
    assert np.allclose(np.diff([z for z, _ in places]), SPACING[2])
    stack = Stack([Slice(Path(), uid, "", (512, 512), SPACING[:2], (0.0, 0.0, z), DIRECTION) for z, uid in places], SPACING)
    (group,) = match([draw(nodule, [stack]) for nodule in message.nodules])
    assert len(group) == 4
    return consensus(group, share)


def test_half_of_the_readers():
    nodule = agreed(0.5)
    assert len(nodule.voxels) == 521
    assert nodule.scores["texture"] == 5
    assert nodule.scores["subtlety"] == 2.5
    # LUNA16's list has 9.77 mm for it, the mean of its readers' diameters.
    assert nodule.diameter_mm == pytest.approx(9.77, abs=0.65)


def test_slices_of_one_series_are_compared_with_the_first():
    """Rounded apart, directions of 0.00049 and 0.00051 would be of two series."""
    slices = [
        Slice(
            Path(str(k)), str(k), "", (8, 8), (1.0, 1.0), (0.0, 0.0, float(k)), (1.0, -turn, 0.0, turn, 1.0, 0.0, 0.0, 0.0, 1.0)
        )
        for k, turn in enumerate([0.00049, 0.00051] * 4)
    ]
    (stack,), notes = stacks(slices)
    assert (len(stack.slices), notes) == (8, [])


def test_the_union_of_the_readers_is_the_mask_of_the_770_nodules(shared_data):
    mask = sitk.ReadImage(shared_data / "luna16_nodules" / "masks" / NAME)
    np.testing.assert_allclose(mask.GetSpacing(), SPACING, atol=1e-6)
    inside, voxels = np.argwhere(sitk.GetArrayFromImage(mask)), agreed(0.0).voxels
    np.testing.assert_array_equal(voxels - voxels.min(0), inside - inside.min(0))
