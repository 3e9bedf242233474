"""World coordinates of cubes, compared with cubes that are cut there."""

import numpy as np
import pytest
import SimpleITK as sitk

from gmmae.data.extraction import world_coordinates
from gmmae.data.extraction.cutting import cut
from gmmae.data.extraction.scan import read
from gmmae.data.volumes import central_section

CENTRE = (-40.0, 25.0, 90.0)


@pytest.fixture(scope="module")
def ramp(tmp_path_factory):
    """A scan whose values are `x + 3 y + 10 z` mm, so that a voxel's value says where it is."""
    path = tmp_path_factory.mktemp("ramp") / "ramp.nii.gz"
    image = sitk.Image([60, 50, 40], sitk.sitkFloat64)
    image.SetOrigin((-70, 0, 70))
    points = [image.TransformIndexToPhysicalPoint((i, j, k)) for k in range(40) for j in range(50) for i in range(60)]
    filled = sitk.GetImageFromArray((np.array(points) @ [1, 3, 10]).reshape(40, 50, 60))
    filled.CopyInformation(image)
    sitk.WriteImage(filled, path)
    return path


@pytest.mark.parametrize("shape", [(8, 8, 8), (8, 12, 6)])
@pytest.mark.parametrize("ndim", [3, 2, 1])
def test_what_is_written_lies_where_it_was_cut(ramp, tmp_path, shape, ndim):
    values = cut(read(ramp), CENTRE, 18.0, shape, None, hu=False).values
    section = central_section(values[None], ndim)[0]
    centre = world_coordinates.section_mm(shape, ndim, CENTRE, 18.0)
    # A section may have lost the longest axis, whose voxels it keeps.
    world_coordinates.write(tmp_path / "cut.nii.gz", section, centre, 18.0 * max(section.shape) / max(shape))
    image = sitk.ReadImage(tmp_path / "cut.nii.gz")
    x, y, z = image.GetSize()
    assert (z, y, x)[3 - ndim :] == section.shape
    for index in [(0, 0, 0), (x - 1, y - 1, z - 1), (x // 2, 0, z - 1)]:
        there = np.dot(image.TransformIndexToPhysicalPoint(index), [1, 3, 10])
        assert image[index] == pytest.approx(there, abs=1e-3)  # float32


def test_a_mixture_is_stretched_by_half_the_edge_of_each_axis():
    """A cube of 8, 12 and 6 voxels along z, y and x, whose longest edge is 24 mm: half edges of 6, 12 and 8 mm."""
    means, covariances = np.array([[1.0, -1.0, 0.5]]), np.array([[[1.0, 0.2, 0], [0.2, 1, -0.5], [0, -0.5, 1]]])
    moved, stretched = world_coordinates.mixture_mm(means, covariances, (8, 12, 6), CENTRE, 24.0)
    np.testing.assert_allclose(moved, [[-40 + 6, 25 - 12, 90 + 4]])
    np.testing.assert_allclose(stretched, [[[36, 0.2 * 72, 0], [0.2 * 72, 144, -0.5 * 96], [0, -0.5 * 96, 64]]])
