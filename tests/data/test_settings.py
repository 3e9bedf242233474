import pytest

from gmmae.config.rules import ConfigError
from gmmae.data.settings import DataConfig


@pytest.mark.parametrize(
    ("ndim", "size", "volume_shape"),
    [
        (3, 16, (16, 16, 16)),
        (3, (16, 24, 20), (16, 24, 20)),
        (2, (24, 20), (24, 24, 20)),
        (1, 30, (30, 30, 30)),
    ],
)
def test_the_size_is_one_number_or_one_for_each_axis(ndim, size, volume_shape):
    config = DataConfig(ndim=ndim, shape=size)
    assert (config.shape, config.sample_shape, config.volume_shape) == (size, volume_shape[3 - ndim :], volume_shape)
    if isinstance(size, int):  # equal edges are one number
        assert config == DataConfig(ndim=ndim, shape=(size,)) == DataConfig(ndim=ndim, shape=(size,) * ndim)


@pytest.mark.parametrize("size", [(16, 24), (16, 16)])
def test_a_size_that_fits_no_volume_is_refused(size):
    with pytest.raises(ConfigError, match=r"one number, or one for each of data.ndim = 3 axes; got "):
        DataConfig(shape=size)
