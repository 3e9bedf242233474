"""Nodules for tests: bright balls of random size and place in noise, two of each patient."""

import numpy as np

from gmmae.data.volumes import Nodules, make_table


def balls(seed, samples, prefix="real", shift=0, size=8):
    rng = np.random.default_rng(seed)
    points = np.stack(np.meshgrid(*[np.linspace(-1, 1, size)] * 3, indexing="ij"), axis=-1)
    centres = rng.uniform(-0.2, 0.2, (samples, 1, 1, 1, 3))
    inside = rng.uniform(0.5, 0.8, (samples, 1, 1, 1)) - np.linalg.norm(points - centres, axis=-1)
    brightness = rng.normal(-100, 60, (samples, 1, 1, 1))
    values = -800 + (brightness + 800) / (1 + np.exp(-inside / 0.1)) + rng.normal(shift, 60, inside.shape)
    groups = [f"{prefix}{i // 2}" for i in range(samples)]
    table = make_table([f"{prefix}{i}" for i in range(samples)], group=groups, category=["solid"] * samples)
    return Nodules(values.astype(np.int16), (inside > 0).astype(np.uint8), table)
