import numpy as np

from gmmae.data import sources
from gmmae.data.settings import DataConfig


def test_edges_of_synthetic_volumes_may_differ():
    """An image is the central slice of a box that is as deep as the image is long."""
    flat = sources.load(DataConfig(shape=(8, 12), ndim=2, samples=8)).nodules.values
    boxes = sources.load(DataConfig(shape=(12, 8, 12), samples=8)).nodules.values
    assert boxes.shape == (8, 12, 8, 12)
    np.testing.assert_array_equal(flat, boxes[:, 6])


def test_the_nodules_of_a_scan_stay_together(monkeypatch):
    """Eight nodules of four scans, of which validation takes whole ones."""
    made = sources.load(DataConfig(shape=8, samples=8)).nodules.with_columns(group=list("aabbccdd"))
    monkeypatch.setattr(sources.prepare, "load", lambda _: made)
    assert len(sources.load(DataConfig(source="cubes", validation=3)).split.train) in (4, 6)
