"""`gmmae describe`: describe volumes as mixtures in world millimetres, with reconstructions that overlay the volumes."""

import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from gmmae.cli.arguments import data_of
from gmmae.cli.options import DescribeArguments
from gmmae.config.schema import Config
from gmmae.data.extraction import cubes as cube_source
from gmmae.data.extraction import opening, world_coordinates
from gmmae.data.extraction.arrays import MEDMNIST_ARRAY, VOLUMES_ARRAY, array_names
from gmmae.data.extraction.integrity import SUFFIXES
from gmmae.data.extraction.prepare import SUMMARY, Known, load_known, prepare, say_on_stderr, stream_prepared
from gmmae.data.extraction.summary import fault_lines
from gmmae.data.settings import DataConfig
from gmmae.data.sources import of_generated
from gmmae.data.volumes import Point, central_section, from_density, masses, to_density
from gmmae.plotting.slices import described_volumes
from gmmae.system.compilation_cache import keep
from gmmae.system.environment import update_jax
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, csv_text, print_result, whole_folder, write_text
from gmmae.training import compilation
from gmmae.training.trained import Trained, restore
from gmmae.training.workdir import WorkDir
from gmmae.workloads.configuration import on_its_data, read_config, without_own_csv

NPZ, CSV, TABLE, FOLDER, PICTURE = "mixtures.npz", "mixtures.csv", "nodules.csv", "reconstructions", "described.png"

MAX_VOXELS = 2**21
"""Maximum voxels of the sections in memory. With all intermediate results they take some hundred megabytes."""

MAX_NAME_BYTES = 200
"""Maximum bytes of a name before an ending and a number are added. File systems allow 255."""

MAX_SHOWN = 6
"""Maximum volumes of the picture, evenly spaced among all."""

MAX_TITLE_NAME = 13
"""Maximum characters of a name in the picture."""

RESULT_NAMES = ("weights", "means", "covariances", "loss", "loss_before", "seconds")
"""Results that are kept of each volume until the end."""

LARGE_VOLUME = 3.0
"""A volume is reported whose edges are all longer than this multiple of the described cube's: it may be a whole scan."""

ENDING = re.compile(r"\.(nii\.gz|nii|mhd|mha|nrrd|npy|npz)(?=_\d+$|$)")

COMPONENT_COLUMNS = {
    "name": "name of the volume in the folder",
    "component": "number of the component, from 0",
    "weight": "weight of the component; those of a volume have the sum 1",
    **{f"{axis}_mm": f"mean along {axis}, mm of the world" for axis in "xyz"},
    **{f"{pair}_mm2": f"covariance of {pair[0]} and {pair[1]}, mm²" for pair in ("xx", "xy", "xz", "yy", "yz", "zz")},
}
"""The columns of `mixtures.csv` for volumes with three axes. Images have those of x and y."""

NODULE_COLUMNS = {
    "file": "file of the reconstruction",
    "category": "category of the nodule, if it is known",
    "diameter_mm": "diameter in mm, if it is known",
    "described": "name of the described volume",
    "path": "its file",
    "mass": "integral of the windowed volume over [-1, 1]^3, by which its density was divided",
    "loss": "loss of the mixture, after `--refine`",
    "loss_before": "loss of the network's mixture",
}
"""The columns of `nodules.csv`."""


class Cubes(NamedTuple):
    """Cut volumes, and the sections of them that the model takes.

    Attributes:
      known: names, positions and other properties of the cubes.
      paths: files that the cubes were cut from.
      shape: voxels of a section.
      centres_mm: centres of the sections.
      sections: takes a maximum number, and yields the sections in parts of that size, in HU or a unit of their own.
      faults: a line for each volume or row that is left out.
      cautions: a line where most of a volume is not described.
    """

    known: Known
    paths: tuple[str, ...]
    shape: tuple[int, ...]
    centres_mm: list[Point]
    sections: Callable[[int], Iterator[np.ndarray]]
    faults: list[str]
    cautions: list[str]


def command(options: DescribeArguments, config: Config) -> int:
    """Describes the volumes, and writes mixtures and reconstructions. Returns the exit code."""
    data = data_of(config, "RUN", config.workload)
    if not options.files:
        _root(data)
    claim_output(options.out, NPZ)
    own = read_config(WorkDir(options.run).config)
    cut_by = without_own_csv(config, own) if options.files else on_its_data(config, own)
    cubes = _cut(cut_by.settings.data, options.files)
    keep(config.compilation_cache)
    update_jax()
    model = restore(config, options.run)
    with whole_folder(options.out, mark=NPZ) as place:
        results = _describe(model, data, cubes, options.refine, place)
    print_result(
        options.out,
        [
            *cubes.faults,
            *cubes.cautions,
            _summary(results, options.refine),
            *(f"{'':<12} {options.out / name}" for name in (NPZ, CSV, TABLE, FOLDER, PICTURE)),
        ],
    )
    return 0


def _root(data: DataConfig) -> tuple[Path, ...]:
    """Returns the folder or file of the data, which stands for missing volumes.

    Raises:
      InputError: the data are synthetic.
    """
    if data.source == "synthetic" or data.root is None:
        raise InputError(
            "FILE must be one volume or more, a folder with a nodules.csv, a folder shaped like LUNA16, or an .npz of volumes; "
            "got none"
        )
    return (data.folder,)


def _arrays(file: Path) -> set[str]:
    """Returns the names of the arrays of an .npz, none for another file."""
    return set(array_names(file)) if file.suffix == ".npz" and file.is_file() else set()


def _source(config: DataConfig, files: Sequence[Path]) -> Literal["luna16", "cubes", "medmnist"]:
    """Returns the source that reads the files. A folder of scans has no nodules.csv, or is named so by the options."""
    if len(files) != 1:
        return "cubes"
    if config.source == "luna16" and config.csv != DataConfig.csv and files[0].is_dir():
        return "luna16"
    return cube_source.source_of(files[0], files[0] / replace(config, source="cubes").csv_name)


def _cut(config: DataConfig, files: Sequence[Path]) -> Cubes:
    """Cuts the volumes as `data` says. A folder shaped like LUNA16 gives each nodule that its CSV lists.

    Without files, the data are those of the configuration.
    """
    source, paths = (_source(config, files), files) if files else (config.source, _root(config))
    # Any folder is read as generated ones are. The run's own window applies later, when volumes become densities.
    config = replace(of_generated(config, paths[0]), source=source, csv=config.csv)
    one_place = len(files) == 1 and (files[0].is_dir() or bool(_arrays(files[0]) & {VOLUMES_ARRAY, MEDMNIST_ARRAY}))
    if files and not one_place:
        prepared = prepare(replace(config, on_error="refuse"), say_on_stderr, plan=cube_source.plan_files(files))
    else:
        prepared = prepare(config, say_on_stderr)
    known, faults = load_known(prepared), fault_lines(prepared.summary, str(prepared.folder / SUMMARY))

    def sections(max_count: int) -> Iterator[np.ndarray]:
        return (central_section(part, config.ndim) for part in stream_prepared(prepared, max_count))

    cut, shape = next(stream_prepared(prepared, 1)).shape[1:], next(sections(1)).shape[1:]
    places_mm = zip(known.details.centre_mm.tolist(), known.details.edge_mm.tolist(), strict=True)
    centres = [world_coordinates.section_mm(cut, config.ndim, tuple(centre), edge) for centre, edge in places_mm]
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    cautions = _only_middles(files, known.details.edge_mm.tolist()) if files and not one_place else []
    return Cubes(known, tuple(str(folder / file) for file in known.files), shape, centres, sections, faults, cautions)


def _only_middles(files: Sequence[Path], edges_mm: Sequence[float]) -> list[str]:
    """Returns a line for the scans whose described cube is a small part of them."""
    large = []
    for file, edge_mm in zip(files, edges_mm, strict=True):
        if file.name.endswith(SUFFIXES):
            sides_mm = opening.edges_mm(file)
            if min(sides_mm) > LARGE_VOLUME * edge_mm:
                large.append(f"{file} of {' × '.join(f'{side:.0f}' for side in sides_mm)} mm (cube: {edge_mm:.0f} mm)")
    if not large:
        return []
    others = f" and of {len(large) - 1} more" if large[1:] else ""
    return [
        f"described is only the middle of {large[0]}{others}. For nodules in other places give a folder with an annotations.csv"
    ]


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
    shown = np.unique(np.linspace(0, len(names) - 1, min(MAX_SHOWN, len(names))).round().astype(int)).tolist()
    pictured: list[tuple[np.ndarray, np.ndarray]] = []
    parts: list[dict[str, np.ndarray]] = []
    for values in cubes.sections(max_count):
        part = slice(first, first + len(values))
        # A smaller last part would need another compiled program, which may round differently.
        missing = max(compilation.EVAL_DEVICE_BATCH - len(values), 0) if first else 0
        padded = np.concatenate([values, np.repeat(values[-1:], missing, 0)])
        results = {name: array[: len(values)] for name, array in model.refine(to_density(padded, data.window), steps).items()}
        reconstructed = from_density(results["density"], mass[part], data.window)
        _write_volumes(out / FOLDER, names[part], reconstructed, data.hu, cubes, first)
        pictured += [(values[i - first], reconstructed[i - first]) for i in shown if first <= i < part.stop]
        parts.append({name: results[name] for name in RESULT_NAMES})
        first += len(values)
    merged = {name: np.concatenate([part[name] for part in parts]) for name in RESULT_NAMES}
    _write_tables(out, names, cubes, mass, merged)
    before, after = (np.stack(arrays) for arrays in zip(*pictured, strict=True))
    titles = [_title(names[i], float(cubes.known.details.diameter_mm[i]), float(merged["loss"][i])) for i in shown]
    described_volumes(out / PICTURE, before, after, titles, data.window)
    return merged


def _title(name: str, diameter_mm: float, loss: float) -> str:
    """Returns the title of a volume in the picture. Of a long name, such as a scan's UID, the end tells nodules apart.

    >>> _title("1.3.6.1.4.1.14519.5.2.1_0", 6.25, 0.00021), _title("nodule", math.nan, 0.001)
    ('…4519.5.2.1_0, 6.2 mm, loss 0.00021', 'nodule, loss 0.001')
    """
    short = name if len(name) <= MAX_TITLE_NAME else f"…{name[1 - MAX_TITLE_NAME :]}"
    return f"{short}, {diameter_mm:.1f} mm, loss {loss:.2g}" if math.isfinite(diameter_mm) else f"{short}, loss {loss:.2g}"


def _write_volumes(folder: Path, names: Sequence[str], values: np.ndarray, hu: bool, cubes: Cubes, first: int) -> None:
    """Writes the reconstructions of the volumes from the number `first` on."""
    values = np.rint(values).clip(-32768, 32767).astype(np.int16) if hu else values.astype(np.float32)
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
    """Returns file names: the names of the volumes without their endings, each different.

    The first volume of a name keeps it. Each other one gets the smallest number that makes it unique.
    """
    stems = [_stem(name) for name in names]
    used_names = set(stems)
    without_number = set(used_names)
    file_names: list[str] = []
    for stem in stems:
        name = stem
        if stem in without_number:
            without_number.remove(stem)
        else:
            numbered = (f"{stem}_{number}" for number in itertools.count(1))
            name = next(candidate for candidate in numbered if candidate not in used_names)
            used_names.add(name)
        file_names.append(name)
    return file_names


def _stem(name: str) -> str:
    stem = re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", ENDING.sub("", name)))
    return stem.encode()[:MAX_NAME_BYTES].decode(errors="ignore") or "volume"


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
