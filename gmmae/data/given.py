"""The volumes that a user names to be described: files, an array, a folder, or a configuration's data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.data import writing
from gmmae.data.extraction import folders
from gmmae.data.extraction.arrays import MEDMNIST_ARRAY, VOLUMES_ARRAY, array_names
from gmmae.data.extraction.headers import SUFFIXES
from gmmae.data.extraction.prepare import SUMMARY, load_prepared, prepare
from gmmae.data.extraction.scan import read
from gmmae.data.extraction.summary import fault_lines
from gmmae.data.settings import DataConfig
from gmmae.data.sources import of_folder
from gmmae.data.volumes import DataError, Point, central_section

LARGE_VOLUME = 3.0
"""A volume whose edges all exceed the cube's by this factor may be a whole scan."""


class Cubes(NamedTuple):
    """Cut volumes, and the sections of them that the model takes."""

    table: Mapping[str, np.ndarray]  # of `Nodules`
    paths: tuple[str, ...]  # of the files
    centres_mm: list[Point]  # of the sections
    sections: np.ndarray
    notes: list[str]  # on what is not described


def cut(config: DataConfig, files: Sequence[Path]) -> Cubes:
    """Cuts the given volumes as `data` says, by default those of the configuration.

    A folder shaped like LUNA16 gives each nodule that its CSV lists.
    """
    place = config.folder
    if files:
        place, source = files[0], "cubes"
        if len(files) == 1:  # a folder of scans, perhaps by the options
            named = config.source == "luna16" and config.csv != DataConfig.csv and place.is_dir()
            source = "luna16" if named else folders.source_of(place, config.csv)
        if source == "medmnist" and config.hu:
            raise DataError(f"{place}: voxels must be HU, as the run's data are; got bytes of --data.source medmnist")
        # The run's own window applies later, when volumes become densities.
        config = of_folder(config, place, source, config.csv)
    arrays = array_names(place) if place.is_file() else ()
    whole = not files or (len(files) == 1 and (place.is_dir() or VOLUMES_ARRAY in arrays or MEDMNIST_ARRAY in arrays))
    prepared = prepare(config) if whole else prepare(replace(config, on_error="refuse"), plan=folders.plan_files(files))
    nodules = load_prepared(prepared)
    edges_mm = nodules.edge_mm.tolist()
    notes, large = fault_lines(prepared.summary, str(prepared.folder / SUMMARY)), []
    folder = place if place.is_dir() else place.parent
    paths = tuple(str(folder / file) for file in nodules.table["path"].tolist())
    for file, edge_mm in zip(paths, () if whole else edges_mm, strict=not whole):
        scan = read(Path(file)) if file.endswith(SUFFIXES) else None
        sides_mm = np.multiply(scan.size, scan.spacing_mm).tolist() if scan else [0]
        if min(sides_mm) > LARGE_VOLUME * edge_mm:
            large.append(f"{file} of {' × '.join(f'{side:.0f}' for side in sides_mm)} mm (cube: {edge_mm:.0f} mm)")
    if large:
        others = f" and of {len(large) - 1} more" if large[1:] else ""
        remedy = "For nodules in other places give a folder with an annotations.csv"
        notes.append(f"described is only the middle of {large[0]}{others}. {remedy}")

    places_mm = zip(nodules.centre_mm.tolist(), edges_mm, strict=True)
    shape = nodules.values.shape[1:]
    centres = [writing.section_mm(shape, config.ndim, tuple(centre), edge) for centre, edge in places_mm]
    return Cubes(nodules.table, paths, centres, central_section(nodules.values, config.ndim), notes)
