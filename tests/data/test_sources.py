import numpy as np
import pytest

from gmmae.data import sources
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError


@pytest.mark.parametrize("validation", [6, 0.25])
def test_the_training_samples_are_counted_without_making_them(monkeypatch, validation):
    config = DataConfig(shape=8, samples=28, validation=validation)
    wanted = len(sources.load(config).train)
    monkeypatch.setitem(sources.SOURCES, "synthetic", None)
    assert sources.training_samples(config) == wanted


def test_edges_of_synthetic_volumes_may_differ():
    """An image is the central slice of a box that is as deep as the image is long."""
    flat = sources.load(DataConfig(shape=(8, 12), ndim=2, samples=8)).train
    boxes = sources.load(DataConfig(shape=(12, 8, 12), samples=8)).train
    assert (flat.shape, boxes.shape) == ((6, 8, 12), (6, 12, 8, 12))
    section = boxes[:, 6]
    np.testing.assert_allclose(flat, section / section.mean((1, 2), keepdims=True) / 4, rtol=1e-5)  # float32


def test_samples_of_other_sources_are_counted_by_their_groups(monkeypatch):
    """Eight nodules of four scans, of which validation takes whole ones."""
    made = sources.SOURCES["synthetic"](DataConfig(shape=8, samples=8))
    monkeypatch.setitem(sources.SOURCES, "cubes", lambda _: made._replace(groups=tuple("aabbccdd")))
    config = DataConfig(source="cubes", validation=3)
    assert sources.training_samples(config) == len(sources.load(config).train) in (4, 6)


def test_too_many_for_validation_are_refused_as_they_are_by_loading():
    with pytest.raises(DataError, match=r"data\.validation must be between 1 and 27 of these 28 samples; got 28"):
        sources.training_samples(DataConfig(shape=8, samples=28, validation=28))
