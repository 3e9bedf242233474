"""Nodules for tests: bright balls of random size and place in noise, two of each patient."""

import numpy as np

from gmmae.data.volumes import Nodules
from gmmae.generation.features import radii


def balls(seed, samples, prefix="real", shift=0, size=8):
    rng = np.random.default_rng(seed)
    masks = np.zeros((samples, size, size, size), np.uint8)
    for mask in masks:
        offset = rng.integers(-1, 2, 3)
        mask[:] = np.roll(radii(mask.shape) < rng.uniform(0.5, 0.8), tuple(offset), (0, 1, 2))
    brightness = rng.normal(-100, 60, (samples, 1, 1, 1))
    values = np.where(masks, brightness, -800) + rng.normal(shift, 60, masks.shape)
    names = tuple(f"{prefix}{i}" for i in range(samples))
    groups = tuple(f"{prefix}{i // 2}" for i in range(samples))
    return Nodules(values.astype(np.int16), names, groups, ("solid",) * samples, masks)
