"""A phantom whose true shape is known."""

import numpy as np

from gmmae.data.synthetic.phantom import Phantom


def smooth(phantom: Phantom, diameter_mm: float) -> Phantom:
    """Returns a phantom as a smooth ball in its own tissue, alone and centred."""
    return phantom._replace(
        diameter_mm=diameter_mm,
        axes=np.eye(3) * (2 / diameter_mm),
        lobes=np.empty((0, 3)),
        spicules=np.empty((0, 3)),
        roughness=0.0,
        texture_hu=0.0,
        core_mm=np.zeros(3),
        tubes=(),
        wall=None,
    )
