import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates
from scipy.spatial.transform import Rotation

from gmmae.data.extraction import arrays, folders, headers
from gmmae.data.extraction.extract import cut, extract
from gmmae.data.extraction.scan import read
from gmmae.data.extraction.tasks import Reading
from gmmae.data.settings import AIR_HU
from gmmae.data.volumes import DataError

POINT = (12.3, -45.6, 78.9)
CUBE = (16, 16, 16)
SPACING = (0.8, 0.7, 2.0)
RANDOM = np.random.default_rng(0).integers(-1000, 400, (20, 50, 40)).astype(np.int16)
DIRECTIONS = {
    "identity": np.eye(3),
    "two axes flipped": np.diag([-1.0, -1.0, 1.0]),
    "rotated": Rotation.from_euler("xyz", (20, -35, 50), degrees=True).as_matrix(),
    "axes exchanged": np.eye(3)[[2, 0, 1]],
}


def world_offsets(edge):
    """Voxel centres of the cube as seen from its centre: z, y, x first, then the vector x, y, z."""
    return np.moveaxis(np.indices(CUBE)[::-1] - 7.5, 0, -1) * edge / 16


def expected(scan, point, edge):
    """The cube and its outside, from the affine and SciPy alone; beyond the scan the nearest voxels go on."""
    index = (world_offsets(edge) + point - scan.origin) @ np.linalg.inv(scan.matrix).T
    limits = np.array(scan.voxels.shape[::-1]) - 0.5
    values = map_coordinates(scan.voxels.astype(float), index.reshape(-1, 3).T[::-1], order=1, mode="nearest")
    return values.reshape(index.shape[:-1]), ((index < -0.5) | (index > limits)).any(-1)


@pytest.mark.parametrize(("spacing", "compressed"), [((1.0, 1.0, 1.0), False), ((0.6, 0.6, 2.5), True)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_world_point_is_the_middle_of_the_cube(tmp_path, blob_scan, direction, spacing, compressed):
    scan = blob_scan(POINT, DIRECTIONS[direction], spacing)
    volume = read(scan.write(tmp_path / "scan.mhd", compressed))
    assert (tmp_path / ("scan.zraw" if compressed else "scan.raw")).exists()
    hu, filled = cut(volume, POINT, 20.0, CUBE, None, True)
    # The blob is the brightest thing: its centroid above half height, in mm from the middle of the cube.
    offsets = world_offsets(20.0)
    weights = np.clip(hu.astype(float) + 300, 0, None)
    centroid = (offsets * weights[..., None]).sum((0, 1, 2)) / weights.sum()
    assert np.linalg.norm(centroid) < 0.1
    values, outside = expected(scan, np.array(POINT), 20.0)
    # Both interpolate linearly between the same integers; only the rounding to whole HU differs.
    assert np.abs(hu - values).max() <= 0.51
    assert filled == outside.mean()


def test_a_header_written_by_hand_with_flipped_axes(tmp_path):
    # (x, y, z) = Offset - (0.5 i, 0.5 j) + 2 k: no library has a say in where the bright voxel is.
    voxels = np.full((20, 30, 40), -800, "<i2")
    voxels[7, 11, 23] = 500
    voxels.tofile(tmp_path / "scan.raw")
    (tmp_path / "scan.mhd").write_text(
        "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nCompressedData = False\n"
        "TransformMatrix = -1 0 0 0 -1 0 0 0 1\nOffset = 100 200 -300\nElementSpacing = 0.5 0.5 2\nDimSize = 40 30 20\n"
        "ElementType = MET_SHORT\nElementDataFile = scan.raw\n"
    )
    centre = (100 - 23 * 0.5, 200 - 11 * 0.5, -300 + 7 * 2.0)
    hu, _ = cut(read(tmp_path / "scan.mhd"), centre, 5 * 0.5, (5, 5, 5), AIR_HU, True)
    assert hu[2, 2, 2] == 500
    assert (hu[2] > -800).sum() == 1


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(*[st.integers(-30, 1030)] * 3),
    st.floats(2, 60),
    st.sampled_from(sorted(DIRECTIONS)),
    st.sampled_from([AIR_HU, None]),
)
def test_anywhere_in_a_scan_the_filling_is_right(blob_scan, tmp_path_factory, thousandths, edge, direction, outside_value):
    # Random voxels, so that every misplaced one shows.
    scan = blob_scan(POINT, DIRECTIONS[direction], SPACING, RANDOM.shape)._replace(voxels=RANDOM)
    shares = np.array(thousandths) / 1000 + 0.00047
    point = scan.origin + scan.matrix @ (shares * RANDOM.shape[::-1] - 0.5)
    arguments = read(scan.write(tmp_path_factory.getbasetemp() / "scan.mha")), tuple(point), edge, CUBE, outside_value, True
    if shares.min() < 0 or shares.max() > 1:
        with pytest.raises(DataError, match="outside"):
            cut(*arguments)
        return
    hu, filled = cut(*arguments)
    values, outside = expected(scan, point, edge)
    assert filled == pytest.approx(outside.mean(), abs=1e-12)
    if outside_value is not None:
        values[outside] = outside_value
    assert np.abs(hu - values).max() <= 0.51


def test_a_compressed_scan_is_decompressed_once_for_all_its_nodules(luna_folder, monkeypatch):
    config = luna_folder("a", [("a", 10 + step, -20, 30, 8) for step in range(3)], compressed=True)
    read = []
    monkeypatch.setattr(headers, "content", lambda path, *how: read.append(path.name) or arrays.content(path, *how))
    (task,) = folders.plan_luna16(config).tasks
    result = extract(task, config)
    assert isinstance(result, Reading)
    assert len(result.cubes) == 3
    assert read == ["a.zraw"]
