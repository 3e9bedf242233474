import numpy as np

from gmmae.data import sources
from gmmae.data.settings import DataConfig


def test_edges_of_synthetic_volumes_may_differ():
    """An image is the central slice of a box that is as deep as the image is long."""
    flat = sources.load(DataConfig(shape=(8, 12), ndim=2, samples=8)).nodules.values
    boxes = sources.load(DataConfig(shape=(12, 8, 12), samples=8)).nodules.values
    assert boxes.shape == (8, 12, 8, 12)
    np.testing.assert_array_equal(flat, boxes[:, 6])
