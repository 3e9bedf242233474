"""The nodules of a configuration, divided into training, validation and perhaps test."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from gmmae.data.extraction import prepare
from gmmae.data.extraction.annotations import OTHERWISE_PATIENTS, PATIENTS, SERIES, find_csv, patient_key, says_case_or_control
from gmmae.data.settings import COLUMNS, DataConfig, Source
from gmmae.data.splits import Split, split
from gmmae.data.synthetic.volumes import synthetic_nodules
from gmmae.data.volumes import DataError, Nodules, central_section, cut_from, joined, letters


class SplitNodules(NamedTuple):
    """All nodules of a source, and the indices for training and validation."""

    nodules: Nodules
    split: Split

    @property
    def test(self) -> Int64[np.ndarray, " n_test"]:
        """Indices of the test samples; none where the data are not divided already."""
        return np.flatnonzero(self.nodules.table["split"] == "test")


def load(config: DataConfig) -> SplitNodules:
    """Loads the nodules and divides them.

    Nodules of `data.augment_with` follow as training samples.
    """
    nodules = undivided(config)
    divided = divide(nodules, config)
    if not config.augment_with:
        return SplitNodules(nodules, divided)
    more = undivided(of_more := of_folder(config, config.augment_with))
    index = np.append(divided.validation, SplitNodules(nodules, divided).test)
    held_out, names = nodules.take(index), patients(nodules, config)
    kin = _kin(held_out, [names[i] for i in index], held_out.column("inserted"))
    known = {key for keys in kin for key in keys}
    others = _kin(more, patients(more, of_more), more.table["name"])
    shared = [name for name, keys in zip(more.names, others, strict=True) if known & keys]
    if shared and not config.allow_seen:
        raise DataError(
            f"nodules of data.augment_with must belong to no validation nodule; {len(shared)} of {len(more.values)} do, such "
            f"as {shared[0]}, by patient or voxels: leave them out, or set data.allow_seen"
        )
    both = joined(nodules, more)
    return SplitNodules(both, divided._replace(train=np.append(divided.train, range(len(nodules.values), len(both.values)))))


def undivided(config: DataConfig) -> Nodules:
    """All nodules, or central sections of them where `data.ndim` asks for these."""
    synthetic = config.source == "synthetic"
    nodules = synthetic_nodules(config.samples, config.volume_shape, config.seed) if synthetic else prepare.load(config)
    masks = None if nodules.masks is None else central_section(nodules.masks, config.ndim)
    return nodules._replace(values=central_section(nodules.values, config.ndim), masks=masks)


def patients(nodules: Nodules, config: DataConfig) -> list[set[str]]:
    """What the patient of each nodule is called: its group's name, and the columns of patients as the groups count them.

    The series of its scan is one of the names.
    """
    others = OTHERWISE_PATIENTS if config.group_column == DataConfig.group_column else ()
    parts = named(nodules, *PATIENTS, config.group_column), named(nodules, *others), named(nodules, SERIES)
    of_each = zip(nodules.groups, *parts, strict=True)
    return [{patient_key(group)} - {""} | (first or otherwise) | series for group, first, otherwise, series in of_each]


def origins(nodules: Nodules) -> list[tuple[str, ...]]:
    """What each nodule is cut from."""
    series = nodules.column(SERIES)
    return [*map(cut_from, nodules.table["origin"].tolist(), repeat("") if series is None else series.tolist())]


def named(nodules: Nodules, *columns: str) -> list[set[str]]:
    """The different names of each nodule in these columns, where there are such."""
    found = {name: column for name in columns if (column := nodules.column(name)) is not None}
    if "case" in found and says_case_or_control(found["case"].tolist()):
        del found["case"]
    return [set(map(patient_key, cells)) - {""} for _, *cells in zip(nodules.names, *found.values(), strict=True)]


def _kin(nodules: Nodules, names: list[set[str]], generated: np.ndarray | None) -> Iterator[set[str | bytes]]:
    """Patients, the scan, the generated nodule itself, and voxels."""
    columns = (column for column in (nodules.table["origin"], generated) if column is not None)
    for volume, of_patient, *texts in zip(nodules.values, names, *columns, strict=True):
        yield {volume.tobytes(), *of_patient, *map(patient_key, texts)} - {""}


def of_folder(config: DataConfig, root: Path | str, source: Source = "cubes", csv: str = DataConfig.csv) -> DataConfig:
    """Reads another folder, such as one of `gmmae generate`, as a run reads real nodules.

    The CSV is by default the folder's own, with the columns that the run names where it has them. The unit is that of the real
    nodules.
    """
    window = DataConfig.window if config.hu else config.window
    usual = {name: getattr(DataConfig, name) for name in ("augment_with", *COLUMNS)}
    found = replace(config, source=source, root=str(root), csv=csv, window=window, **usual)
    if not (found.folder.is_dir() and (table := find_csv(found)).is_file()):
        return found
    with table.open(encoding="utf-8", errors="replace") as file:
        header = set(map(letters, file.readline().split(",")))
    return replace(found, **{name: word for name in COLUMNS if letters(word := getattr(config, name)) in header})


def divide(nodules: Nodules, config: DataConfig) -> Split:
    """The data's own division into training and validation, otherwise one by patient."""
    parts = nodules.table["split"]
    if parts.any():
        return Split(*(np.flatnonzero(parts == part) for part in ("train", "validation")))
    return split(nodules.groups, nodules.categories, config.validation, config.seed)
