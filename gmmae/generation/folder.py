"""Generated nodules as a folder of cubes: volumes, masks, and a CSV with the record of each nodule."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gmmae.data import native_volumes
from gmmae.data.extraction import world_coordinates
from gmmae.data.extraction.annotations import read_table
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, TransientError
from gmmae.generation import grain as grains
from gmmae.generation.generator import Generated
from gmmae.generation.grain import Grain

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
    "grain_donor": "training nodule that the spectrum comes from",
    "noise_hu": "noise of that nodule's scan, HU; empty where it was not measured",
    "sharpness": "frequency with a tenth of the contrast in that scan's slices, line pairs per cm",
    "slice_mm": "distance of that scan's slices, mm",
}
"""Columns of `nodules.csv` with their meanings. `gmmae.data.extraction.cubes` reads the first four."""


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
        origin = (generated.nearest[i], f"{generated.distance[i]:.6f}", generated.turn[i], *donors, generated.grain_donors[i])
        rows.append([file, nodules.groups[i], *known, *origin, *_grain(generated, i)])
    with (out / "nodules.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def _grain(generated: Generated, i: int) -> list[str]:
    """Returns the cells with a nodule's grain, empty where it is not known."""
    if generated.grain is None:
        return ["", "", ""]
    numbers = (generated.grain.noise_hu[i], generated.grain.sharpness[i], generated.grain.slice_mm[i])
    return ["" if np.isnan(number) else f"{number:.3f}" for number in numbers]


def read_grain(config: DataConfig, names: Sequence[str]) -> Grain | None:
    """Returns the grain of nodules of a folder of cubes: that on record, or else measured in the lung around the masks.

    It is None if the CSV has no record of it and a volume cannot be read or has no mask.

    Raises:
      TransientError: a volume could not be read for a transient reason.
      DataError: the CSV cannot be used.
    """
    table = read_table(config.folder / config.csv_name, config, "file", ())
    columns = ("noise_hu", "sharpness", "slice_mm")
    if set(columns) <= set(table.columns):
        recorded = {line["file"]: [_number(line[column]) for column in columns] for line in table.lines}
        noise_hu, sharpness, slice_mm = np.array([recorded.get(name, [np.nan] * 3) for name in names]).T
        return Grain(noise_hu, grains.SHARPNESS_OF_BLUR / sharpness, slice_mm)
    try:
        return measured_grain(config, names)
    except TransientError:
        raise
    except DataError:
        return None


def measured_grain(config: DataConfig, names: Sequence[str]) -> Grain:
    """Measures the grain of nodules of a folder of cubes, in the lung around their masks.

    Raises:
      DataError: a volume of the folder cannot be read, or has no mask.
    """
    volumes = {volume.name: volume for volume in native_volumes.read(config)}
    return grains.measure([volumes[name] for name in names])


def _number(cell: str) -> float:
    """Returns a positive number of a CSV, or NaN."""
    try:
        number = float(cell)
    except ValueError:
        return np.nan
    return number if 0 < number < np.inf else np.nan
