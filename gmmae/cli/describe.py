"""`gmmae describe`: volumes in, mixtures out: in millimetres of the world, with reconstructions that lie over the volumes."""

import csv
import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from gmmae.cli.arguments import MISSING, Files, Run, parse_on_run
from gmmae.config.rules import Options, between
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Point, central_section, from_density, masses, to_density
from gmmae.system.compilation_cache import keep
from gmmae.system.errors import InputError
from gmmae.system.files import require_free, tell, whole_folder
from gmmae.training.workdir import WorkDir
from gmmae.workloads.configuration import read_config, without_own_csv

if TYPE_CHECKING:
    from gmmae.data.extraction.prepare import Known
    from gmmae.training.trained import Trained

NPZ, CSV, TABLE, FOLDER = "mixtures.npz", "mixtures.csv", "nodules.csv", "reconstructions"

Steps = Annotated[int, between(0, 100_000)]

MOST_VOXELS = 2**21
"""Voxels of the sections that are described at a time; with what is computed of them they take some hundred megabytes."""

LONGEST_NAME = 200
"""Bytes of a name, to which an ending and a number are added; file systems allow 255."""

KEPT = ("weights", "means", "covariances", "loss", "loss_before", "seconds")
"""What is kept of each volume until all are described."""

ENDING = re.compile(r"\.(nii\.gz|nii|mhd|mha|nrrd|npy|npz|png)(?=_\d+$|$)")


@dataclass(frozen=True)
class Arguments(Options):
    """The mixture of each volume, by a trained run; volumes are cut as the run's data are, or as the options say."""

    run: Run = MISSING  # the work directory of a run that you trust: the Python that it names is executed; it comes first
    files: Files = ()  # volumes with a nodule in the middle; or a folder with a nodules.csv; or an .npz of volumes
    out: Path = MISSING  # the folder to write; new or empty, or an earlier description, which is replaced
    refine: Steps = 0  # steps of Adam that refine each mixture; 120 do most of what can be done


class Cubes(NamedTuple):
    """Volumes, cut: what is known of each, and a way to the sections of them that the model takes.

    Attributes:
      known: of the cubes.
      paths: of the files that they were cut from.
      shape: voxels of a section.
      centres_mm: of the sections.
      sections: takes the most that are wanted at a time, and gives them so, in HU or a unit of their own.
      faults: a line for each volume or row that is left out.
    """

    known: "Known"
    paths: tuple[str, ...]
    shape: tuple[int, ...]
    centres_mm: list[Point]
    sections: Callable[[int], Iterator[np.ndarray]]
    faults: list[str]


def command(arguments: Sequence[str], prog: str) -> int:
    """Describes the volumes, and writes mixtures and reconstructions. Returns the exit code."""
    asked, config = parse_on_run(Arguments, arguments, prog)
    data = getattr(config.settings, "data", None)
    if not isinstance(data, DataConfig):
        raise InputError(f"RUN must be of a workload whose data are volumes or images, such as nodules; got {config.workload}")
    if not asked.files:
        raise InputError("FILE must be one volume or more, a folder with a nodules.csv, or an .npz of volumes; got none")
    require_free(asked.out, mark=NPZ)
    own = read_config(WorkDir(asked.run).config)
    cubes = _cut(without_own_csv(config, own).settings.data, asked.files)
    keep(config.compilation_cache)
    from gmmae.training.trained import restore

    model = restore(config, asked.run)
    with whole_folder(asked.out, mark=NPZ) as place:
        found = _describe(model, data, cubes, asked.refine, place)
    tell(
        asked.out,
        [*cubes.faults, _said(found, asked.refine), *(f"{'':<12} {asked.out / name}" for name in (NPZ, CSV, TABLE, FOLDER))],
    )
    return 0


def _cut(config: DataConfig, files: Sequence[Path]) -> Cubes:
    """The volumes as `data` would give them, by the source `cubes`."""
    from gmmae.data.extraction import cubes, world_coordinates
    from gmmae.data.extraction.arrays import array_names
    from gmmae.data.extraction.prepare import SUMMARY, load_known, prepare, say_on_stderr, stream_prepared
    from gmmae.data.extraction.summary import fault_lines

    # Of cubes it is the window that says whether they are in HU; the run's own comes later, when they become densities.
    window = DataConfig.window if config.hu else config.window
    config = replace(config, source="cubes", root=str(files[0]), window=window)
    config = replace(config, category_column=DataConfig.category_column, group_column="")
    if files[0].is_dir() and cubes.looks_like_luna16(files[0], files[0] / (config.csv or cubes.NODULES)):
        raise InputError(
            f"FILE must be volumes, or a folder with a nodules.csv; got {files[0]}, shaped like LUNA16: give .mhd files"
        )
    several = len(files) == 1 and files[0].suffix == ".npz" and files[0].is_file() and "volumes" in array_names(files[0])
    if not several and not (len(files) == 1 and files[0].is_dir()):
        prepared = prepare(replace(config, on_error="refuse"), say_on_stderr, plan=cubes.plan_files(files))
    else:
        prepared = prepare(config, say_on_stderr)
    known, faults = load_known(prepared), fault_lines(prepared.summary, str(prepared.folder / SUMMARY))

    def sections(most: int) -> Iterator[np.ndarray]:
        return (central_section(part, config.ndim) for part in stream_prepared(prepared, most))

    cut, shape = next(stream_prepared(prepared, 1)).shape[1:], next(sections(1)).shape[1:]
    places_mm = zip(known.details.centre_mm.tolist(), known.details.edge_mm.tolist(), strict=True)
    centres = [world_coordinates.section_mm(cut, config.ndim, tuple(centre), edge) for centre, edge in places_mm]
    folder = files[0] if files[0].is_dir() else files[0].parent
    return Cubes(known, tuple(str(folder / file) for file in known.files), shape, centres, sections, faults)


def _describe(model: "Trained", data: DataConfig, cubes: Cubes, steps: int, out: Path) -> dict[str, np.ndarray]:
    """Describes the sections and writes all files; no more than `MOST_VOXELS` are in memory at a time.

    Returns:
      What was found of each: mixtures, losses and seconds.

    Raises:
      DataError: a volume has no mass. Nothing is written then.
    """
    from gmmae.training.compilation import EVAL_DEVICE_BATCH

    most = EVAL_DEVICE_BATCH * max(1, MOST_VOXELS // (EVAL_DEVICE_BATCH * math.prod(cubes.shape)))
    mass = _masses(cubes, data.window, most)
    names, first = _names(cubes.known.names), 0
    (out / FOLDER).mkdir()
    parts: list[dict[str, np.ndarray]] = []
    for values in cubes.sections(most):
        part = slice(first, first + len(values))
        # A smaller last part would be computed by another program, which may round otherwise.
        more = max(EVAL_DEVICE_BATCH - len(values), 0) if first else 0
        padded = np.concatenate([values, np.repeat(values[-1:], more, 0)])
        found = {name: array[: len(values)] for name, array in model.refine(to_density(padded, data.window), steps).items()}
        _write_volumes(out / FOLDER, names[part], found["density"], mass[part], data, cubes, first)
        parts.append({name: found[name] for name in KEPT})
        first += len(values)
    together = {name: np.concatenate([part[name] for part in parts]) for name in KEPT}
    _write_tables(out, names, cubes, mass, together)
    return together


def _masses(cubes: Cubes, window: tuple[float, float], most: int) -> np.ndarray:
    found: list[np.ndarray] = []
    for values in cubes.sections(most):
        first = sum(map(len, found))
        found.append(masses(values, window, cubes.paths[first : first + len(values)]))
    return np.concatenate(found)


def _write_volumes(
    folder: Path, names: Sequence[str], density: np.ndarray, mass: np.ndarray, data: DataConfig, cubes: Cubes, first: int
) -> None:
    """Writes the reconstructions of the volumes from the number `first` on."""
    from gmmae.data.extraction import world_coordinates

    values = from_density(density, mass, data.window)
    values = np.rint(values).clip(-32768, 32767).astype(np.int16) if data.hu else values.astype(np.float32)
    for i, (name, reconstruction) in enumerate(zip(names, values, strict=True), start=first):
        edge_mm = float(cubes.known.details.edge_mm[i])
        world_coordinates.write(folder / f"{name}.nii.gz", reconstruction, cubes.centres_mm[i], edge_mm)


def _write_tables(out: Path, names: list[str], cubes: Cubes, mass: np.ndarray, found: Mapping[str, np.ndarray]) -> None:
    from gmmae.data.extraction import world_coordinates

    edges = cubes.known.details.edge_mm.tolist()
    pairs = [
        world_coordinates.mixture_mm(mean, covariance, cubes.shape, centre, edge)
        for mean, covariance, centre, edge in zip(found["means"], found["covariances"], cubes.centres_mm, edges, strict=True)
    ]
    means, covariances = (np.stack(part) for part in zip(*pairs, strict=True))
    np.savez(
        out / NPZ,
        names=np.array(names),
        paths=np.array(cubes.paths),
        weights=found["weights"],
        means_mm=means,
        covariances_mm2=covariances,
        centre_mm=np.array(cubes.centres_mm),
        edge_mm=cubes.known.details.edge_mm,
        mass=mass,
        loss=found["loss"],
        loss_before=found["loss_before"],
    )
    _write_csv(out / CSV, _components(names, found["weights"], means, covariances))
    _write_csv(out / TABLE, _nodules(names, cubes, mass, found))


def _names(names: Sequence[str]) -> list[str]:
    """Names for files: those of the volumes without their endings, and different from each other on every file system.

    The first volume of a name has it unchanged; the others get the first number that makes a name which no volume has.
    """
    stems = [_stem(name) for name in names]
    found: dict[int, str] = {}
    taken: set[str] = set()
    for i, stem in enumerate(stems):
        if _folded(stem) not in taken:
            found[i] = stem
            taken.add(_folded(stem))
    for i, stem in enumerate(stems):
        if i not in found:
            numbered = (f"{stem}_{number}" for number in itertools.count(1))
            found[i] = next(name for name in numbered if _folded(name) not in taken)
            taken.add(_folded(found[i]))
    return [found[i] for i in range(len(stems))]


def _stem(name: str) -> str:
    stem = re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", ENDING.sub("", name)))
    return stem.encode()[:LONGEST_NAME].decode(errors="ignore") or "volume"


def _folded(name: str) -> str:
    """Equal for names that some file system takes for the same."""
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


def _nodules(names: Sequence[str], cubes: Cubes, mass: np.ndarray, found: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """A table by which the project reads the reconstructions as it reads any cubes."""
    for i, name in enumerate(names):
        diameter = cubes.known.details.diameter_mm[i]
        yield {
            "file": f"{FOLDER}/{name}.nii.gz",
            "category": cubes.known.categories[i],
            "diameter_mm": "" if np.isnan(diameter) else f"{diameter:.6g}",
            "described": cubes.known.names[i],
            "path": cubes.paths[i],
            "mass": f"{mass[i]:.6g}",
            "loss": f"{found['loss'][i]:.6g}",
            "loss_before": f"{found['loss_before'][i]:.6g}",
        }


def _write_csv(path: Path, rows: Iterator[Mapping[str, Any]]) -> None:
    """Writes at least one row, one at a time."""
    with path.open("w", newline="", encoding="utf-8") as file:
        first = next(rows)
        writer = csv.DictWriter(file, first)
        writer.writeheader()
        writer.writerows(itertools.chain([first], rows))


def _said(found: Mapping[str, np.ndarray], steps: int) -> str:
    before, after = (found[name].mean() for name in ("loss_before", "loss"))
    line = f"{len(found['loss'])} volumes described, mean loss {before:.4g}"
    if steps:
        line += f"; {after:.4g} after {steps} steps, {1e3 * found['seconds'].mean():.0f} ms a volume"
    return line
