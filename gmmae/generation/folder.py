"""Generated nodules as a folder of cubes: volumes, masks, and a CSV with the record of each nodule."""

from pathlib import Path

import numpy as np

from gmmae.data import writing
from gmmae.data.volumes import Nodules, own_columns
from gmmae.generation.generator import Generated
from gmmae.system.files import csv_text, write_text

DONORS = "donors.csv"
COLUMNS = {
    "file": "file of the cube in images/, and of its mask in masks/",
    "group": "patient of the first donor of the shape, or that nodule's scan where no patient is named",
    "category": "category of the nodule",
    "diameter_mm": "diameter, mm",
    "run": "id of the run that trained the model",
    "seed": "seed of the sample",
    "nearest": "the nearest training nodule, in any of 16 flips and turns",
    "distance": "distance between the values of the two, as in the novelty of `gmmae judge`",
    "turn": "index of the applied symmetry; 0 is the identity",
    "shape_donors": "training nodules that the shape comes from",
    "texture_donors": "training nodules that the texture comes from",
}
"""Columns of `nodules.csv` with their meanings; the source `cubes` reads the first four."""
DONOR_COLUMNS = {"name": "name of the donor", "COLUMN": "a column of the data's CSV, one each; csv_name for name"}


def write(generated: Generated, training: Nodules, out: Path, run: str, seed: int) -> None:
    """Writes `images/`, `masks/` and `nodules.csv`, and the donors' columns of the CSV into `donors.csv`."""
    nodules = generated.nodules
    volumes = {"images": nodules.values} | ({} if nodules.masks is None else {"masks": nodules.masks})
    for folder in volumes:
        (out / folder).mkdir(parents=True)
    rows = []
    groups, categories = nodules.groups, nodules.categories
    for i, name in enumerate(nodules.names):
        file = f"{name}.nii.gz"
        for folder, values in volumes.items():
            writing.write(out / folder / file, values[i], (0.0, 0.0, 0.0), float(nodules.edge_mm[i]))
        donors = (" ".join(dict.fromkeys(names[i])) for names in (generated.shape_donors, generated.texture_donors))
        size, apart = f"{nodules.diameter_mm[i]:.6f}", f"{generated.distance[i]:.6f}"
        cells = (file, groups[i], categories[i], size, run, seed, generated.nearest[i], apart, generated.turn[i], *donors)
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    used = np.isin(training.table["name"], [*generated.shape_donors.ravel(), *generated.texture_donors.ravel()])
    columns = {"name": training.table["name"], **own_columns(training.table, ("name",))}
    known = [{name: column[i] for name, column in columns.items()} for i in np.flatnonzero(used)]
    write_text(out / "nodules.csv", csv_text(rows, COLUMNS))
    write_text(out / DONORS, csv_text(known, columns))
