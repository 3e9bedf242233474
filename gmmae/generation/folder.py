"""Generated nodules as a folder of cubes: volumes, masks, and a CSV with the record of each nodule."""

import csv
from pathlib import Path

from gmmae.data.extraction import world_coordinates
from gmmae.generation.generator import Generated

COLUMNS = (
    *("file", "category", "diameter_mm", "run", "seed", "nearest", "distance"),
    *("turn", "shape_donors", "texture_donors"),
)
"""Columns of `nodules.csv`. `gmmae.data.extraction.cubes` reads the first three, and the others record the nodule's origin."""


def write(generated: Generated, out: Path, run: str, seed: int) -> None:
    """Writes `images/`, `masks/` and `nodules.csv` into a folder.

    Args:
      generated: nodules with three axes.
      out: a folder of `gmmae.system.files.whole_folder`.
      run: id of the run that trained the model.
      seed: seed of the sample.
    """
    nodules = generated.nodules
    assert nodules.details is not None
    volumes = {"images": nodules.values} | ({} if nodules.masks is None else {"masks": nodules.masks})
    for folder in volumes:
        (out / folder).mkdir(parents=True, exist_ok=True)
    rows = []
    for i, name in enumerate(nodules.names):
        file = f"{name}.nii.gz"
        for folder, values in volumes.items():
            world_coordinates.write(out / folder / file, values[i], (0.0, 0.0, 0.0), float(nodules.details.edge_mm[i]))
        donors = (" ".join(dict.fromkeys(names[i])) for names in (generated.shape_donors, generated.texture_donors))
        known = (nodules.categories[i], f"{nodules.details.diameter_mm[i]:.6f}", run, seed)
        rows.append([file, *known, generated.nearest[i], f"{generated.distance[i]:.6f}", generated.turn[i], *donors])
    with (out / "nodules.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
