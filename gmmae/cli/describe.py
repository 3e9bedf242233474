"""`gmmae describe`: describe volumes as mixtures in world millimetres, with reconstructions that overlay the volumes."""

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gmmae.cli.arguments import data_of
from gmmae.cli.options import DescribeArguments
from gmmae.config.schema import Config
from gmmae.data.extraction import cubes as cube_source
from gmmae.data.extraction import world_coordinates
from gmmae.data.extraction.arrays import array_names
from gmmae.data.extraction.prepare import SUMMARY, Known, load_known, prepare, say_on_stderr, stream_prepared
from gmmae.data.extraction.summary import fault_lines
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Point, central_section, from_density, masses, to_density
from gmmae.system.compilation_cache import keep
from gmmae.system.environment import update_jax
from gmmae.system.errors import InputError
from gmmae.system.files import csv_text, print_result, require_free, whole_folder, write_text
from gmmae.training import compilation
from gmmae.training.trained import Trained, restore
from gmmae.training.workdir import WorkDir
from gmmae.workloads.configuration import read_config, without_own_csv

NPZ, CSV, TABLE, FOLDER = "mixtures.npz", "mixtures.csv", "nodules.csv", "reconstructions"

MAX_VOXELS = 2**21
"""Maximum voxels of the sections in memory. With all intermediate results they take some hundred megabytes."""

MAX_NAME_BYTES = 200
"""Maximum bytes of a name before an ending and a number are added. File systems allow 255."""

RESULT_NAMES = ("weights", "means", "covariances", "loss", "loss_before", "seconds")
"""Results that are kept of each volume until the end."""

ENDING = re.compile(r"\.(nii\.gz|nii|mhd|mha|nrrd|npy|npz|png)(?=_\d+$|$)")


class Cubes(NamedTuple):
    """Cut volumes, and the sections of them that the model takes.

    Attributes:
      known: names, positions and other properties of the cubes.
      paths: files that the cubes were cut from.
      shape: voxels of a section.
      centres_mm: centres of the sections.
      sections: takes a maximum number, and yields the sections in parts of that size, in HU or a unit of their own.
      faults: a line for each volume or row that is left out.
    """

    known: Known
    paths: tuple[str, ...]
    shape: tuple[int, ...]
    centres_mm: list[Point]
    sections: Callable[[int], Iterator[np.ndarray]]
    faults: list[str]


def command(options: DescribeArguments, config: Config) -> int:
    """Describes the volumes, and writes mixtures and reconstructions. Returns the exit code."""
    data = data_of(config, "RUN", config.workload)
    if not options.files:
        raise InputError("FILE must be one volume or more, a folder with a nodules.csv, or an .npz of volumes; got none")
    require_free(options.out, mark=NPZ)
    own = read_config(WorkDir(options.run).config)
    cubes = _cut(without_own_csv(config, own).settings.data, options.files)
    keep(config.compilation_cache)
    update_jax()
    model = restore(config, options.run)
    with whole_folder(options.out, mark=NPZ) as place:
        results = _describe(model, data, cubes, options.refine, place)
    print_result(
        options.out,
        [
            *cubes.faults,
            _summary(results, options.refine),
            *(f"{'':<12} {options.out / name}" for name in (NPZ, CSV, TABLE, FOLDER)),
        ],
    )
    return 0


def _cut(config: DataConfig, files: Sequence[Path]) -> Cubes:
    """Cuts the volumes as `data` says, by the source `cubes`."""
    # The default window marks cubes in HU. The run's own window applies later, when they become densities.
    window = DataConfig.window if config.hu else config.window
    config = replace(config, source="cubes", root=str(files[0]), window=window)
    config = replace(config, category_column=DataConfig.category_column, group_column="auto")
    if files[0].is_dir() and cube_source.looks_like_luna16(files[0], files[0] / config.csv_name):
        raise InputError(
            f"FILE must be volumes, or a folder with a nodules.csv; got {files[0]}, shaped like LUNA16: give .mhd files"
        )
    one_array_file = len(files) == 1 and files[0].suffix == ".npz" and files[0].is_file() and "volumes" in array_names(files[0])
    if not one_array_file and not (len(files) == 1 and files[0].is_dir()):
        prepared = prepare(replace(config, on_error="refuse"), say_on_stderr, plan=cube_source.plan_files(files))
    else:
        prepared = prepare(config, say_on_stderr)
    known, faults = load_known(prepared), fault_lines(prepared.summary, str(prepared.folder / SUMMARY))

    def sections(max_count: int) -> Iterator[np.ndarray]:
        return (central_section(part, config.ndim) for part in stream_prepared(prepared, max_count))

    cut, shape = next(stream_prepared(prepared, 1)).shape[1:], next(sections(1)).shape[1:]
    places_mm = zip(known.details.centre_mm.tolist(), known.details.edge_mm.tolist(), strict=True)
    centres = [world_coordinates.section_mm(cut, config.ndim, tuple(centre), edge) for centre, edge in places_mm]
    folder = files[0] if files[0].is_dir() else files[0].parent
    return Cubes(known, tuple(str(folder / file) for file in known.files), shape, centres, sections, faults)


def _describe(model: Trained, data: DataConfig, cubes: Cubes, steps: int, out: Path) -> dict[str, np.ndarray]:
    """Describes the sections and writes all files. No more than `MAX_VOXELS` are in memory.

    Returns:
      The results of all volumes: mixtures, losses and seconds.

    Raises:
      DataError: a volume has no mass. No file is written.
    """
    max_count = compilation.EVAL_DEVICE_BATCH * max(1, MAX_VOXELS // (compilation.EVAL_DEVICE_BATCH * math.prod(cubes.shape)))
    paths = iter(cubes.paths)
    volumes = ((part, list(itertools.islice(paths, len(part)))) for part in cubes.sections(max_count))
    mass = np.concatenate([masses(part, data.window, files) for part, files in volumes])
    names, first = _names(cubes.known.names), 0
    (out / FOLDER).mkdir()
    parts: list[dict[str, np.ndarray]] = []
    for values in cubes.sections(max_count):
        part = slice(first, first + len(values))
        # A smaller last part would need another compiled program, which may round differently.
        missing = max(compilation.EVAL_DEVICE_BATCH - len(values), 0) if first else 0
        padded = np.concatenate([values, np.repeat(values[-1:], missing, 0)])
        results = {name: array[: len(values)] for name, array in model.refine(to_density(padded, data.window), steps).items()}
        _write_volumes(out / FOLDER, names[part], results["density"], mass[part], data, cubes, first)
        parts.append({name: results[name] for name in RESULT_NAMES})
        first += len(values)
    merged = {name: np.concatenate([part[name] for part in parts]) for name in RESULT_NAMES}
    _write_tables(out, names, cubes, mass, merged)
    return merged


def _write_volumes(
    folder: Path, names: Sequence[str], density: np.ndarray, mass: np.ndarray, data: DataConfig, cubes: Cubes, first: int
) -> None:
    """Writes the reconstructions of the volumes from the number `first` on."""
    values = from_density(density, mass, data.window)
    values = np.rint(values).clip(-32768, 32767).astype(np.int16) if data.hu else values.astype(np.float32)
    for i, (name, reconstruction) in enumerate(zip(names, values, strict=True), start=first):
        edge_mm = float(cubes.known.details.edge_mm[i])
        world_coordinates.write(folder / f"{name}.nii.gz", reconstruction, cubes.centres_mm[i], edge_mm)


def _write_tables(out: Path, names: list[str], cubes: Cubes, mass: np.ndarray, results: Mapping[str, np.ndarray]) -> None:
    edges = cubes.known.details.edge_mm.tolist()
    pairs = [
        world_coordinates.mixture_mm(mean, covariance, cubes.shape, centre, edge)
        for mean, covariance, centre, edge in zip(
            results["means"], results["covariances"], cubes.centres_mm, edges, strict=True
        )
    ]
    means, covariances = (np.stack(part) for part in zip(*pairs, strict=True))
    np.savez(
        out / NPZ,
        names=np.array(names),
        paths=np.array(cubes.paths),
        weights=results["weights"],
        means_mm=means,
        covariances_mm2=covariances,
        centre_mm=np.array(cubes.centres_mm),
        edge_mm=cubes.known.details.edge_mm,
        mass=mass,
        loss=results["loss"],
        loss_before=results["loss_before"],
    )
    tables = {CSV: _components(names, results["weights"], means, covariances), TABLE: _nodules(names, cubes, mass, results)}
    for name, lines in tables.items():
        rows = list(lines)
        write_text(out / name, csv_text(rows, rows[0]))


def _names(names: Sequence[str]) -> list[str]:
    """Returns file names: the names of the volumes without their endings, different on every file system.

    The first volume of a name keeps it. Each other one gets the smallest number that makes it unique.
    """
    stems = [_stem(name) for name in names]
    used_names = {_folded(stem) for stem in stems}
    without_number = set(used_names)
    file_names: list[str] = []
    for stem in stems:
        name = stem
        if _folded(stem) in without_number:
            without_number.remove(_folded(stem))
        else:
            numbered = (f"{stem}_{number}" for number in itertools.count(1))
            name = next(candidate for candidate in numbered if _folded(candidate) not in used_names)
            used_names.add(_folded(name))
        file_names.append(name)
    return file_names


def _stem(name: str) -> str:
    stem = re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", ENDING.sub("", name)))
    return stem.encode()[:MAX_NAME_BYTES].decode(errors="ignore") or "volume"


def _folded(name: str) -> str:
    """Returns a form of a name that is equal for names that some file system does not tell apart."""
    return unicodedata.normalize("NFKC", name).casefold()


def _components(
    names: Sequence[str], weights: np.ndarray, means: np.ndarray, covariances: np.ndarray
) -> Iterator[dict[str, Any]]:
    axes = "xyz"[: means.shape[-1]]
    pairs = [(i, j) for i in range(len(axes)) for j in range(i, len(axes))]
    for name, of_weights, of_means, of_covariances in zip(names, weights, means, covariances, strict=True):
        for k, (weight, mean, covariance) in enumerate(zip(of_weights, of_means, of_covariances, strict=True)):
            yield {
                "name": name,
                "component": k,
                "weight": f"{weight:.6g}",
                **{f"{axis}_mm": f"{mean[i]:.6g}" for i, axis in enumerate(axes)},
                **{f"{axes[i]}{axes[j]}_mm2": f"{covariance[i, j]:.6g}" for i, j in pairs},
            }


def _nodules(
    names: Sequence[str], cubes: Cubes, mass: np.ndarray, results: Mapping[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Yields a table by which the project reads the reconstructions like any cubes."""
    for i, name in enumerate(names):
        diameter = cubes.known.details.diameter_mm[i]
        yield {
            "file": f"{FOLDER}/{name}.nii.gz",
            "category": cubes.known.categories[i],
            "diameter_mm": "" if np.isnan(diameter) else f"{diameter:.6g}",
            "described": cubes.known.names[i],
            "path": cubes.paths[i],
            "mass": f"{mass[i]:.6g}",
            "loss": f"{results['loss'][i]:.6g}",
            "loss_before": f"{results['loss_before'][i]:.6g}",
        }


def _summary(results: Mapping[str, np.ndarray], steps: int) -> str:
    before, after = (results[name].mean() for name in ("loss_before", "loss"))
    line = f"{len(results['loss'])} volumes described, mean loss {before:.4g}"
    if steps:
        line += f"; {after:.4g} after {steps} steps, {1e3 * results['seconds'].mean():.0f} ms a volume"
    return line
