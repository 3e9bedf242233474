"""Files of MedMNIST's form with small volumes."""

import numpy as np

COUNTS = {"train": 24, "val": 12, "test": 16}
EDGE = 12


def arrays(classes=2, counts=COUNTS):
    """Returns balls whose radius tells the class, in the arrays of a file."""
    rng = np.random.default_rng(0)
    distance = np.linalg.norm(np.indices((EDGE,) * 3) - (EDGE - 1) / 2, axis=0)
    made = {}
    for part, count in counts.items():
        labels = np.arange(count) % classes
        radii = EDGE * (0.15 + 0.12 * labels) + rng.uniform(0, 0.03 * EDGE, count)
        shares = np.clip(radii[:, None, None, None] - distance + 0.5, 0, 1)
        noise = rng.uniform(0, 20, shares.shape)
        made[f"{part}_images"] = (230 * shares + noise).astype(np.uint8)
        made[f"{part}_labels"] = labels[:, None].astype(np.uint8)
    return made


def write(path, **changes):
    """Writes a file of that form with some arrays changed, or left out where None is given."""
    content = arrays() | changes
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, allow_pickle=False, **{name: array for name, array in content.items() if array is not None})
    return path
