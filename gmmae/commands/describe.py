"""`gmmae describe`: volumes in, mixtures out: in millimetres of the world, with reconstructions that lie over the volumes."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from gmmae.base.compiled import keep
from gmmae.base.config import changed
from gmmae.base.errors import InputError
from gmmae.base.output import require_free, tell, whole_folder
from gmmae.base.rules import Options, between
from gmmae.base.workdir import WorkDir
from gmmae.commands.arguments import MISSING, Files, Run, parse_on_run, read_config, without_own_csv
from gmmae.data.config import DataConfig
from gmmae.data.volumes import Nodules, Point, central_section, from_density, masses, to_density

if TYPE_CHECKING:
    from gmmae.data.extraction.prepare import Details

NPZ, CSV, TABLE, FOLDER = "mixtures.npz", "mixtures.csv", "nodules.csv", "reconstructions"

Steps = Annotated[int, between(0, 100_000)]

ENDING = re.compile(r"\.(nii\.gz|nii|mhd|mha|nrrd|npy|npz|png)(?=_\d+$|$)")


@dataclass(frozen=True)
class Arguments(Options):
    """The mixture of each volume, by a trained run; volumes are cut as the run's data are, or as the options say."""

    run: Run = MISSING  # the work directory of a run that you trust: the Python that it names is executed; it comes first
    files: Files = ()  # volumes with a nodule in the middle; or a folder with a nodules.csv; or an .npz of volumes
    out: Path = MISSING  # the folder to write; new or empty, or an earlier description, which is replaced
    refine: Steps = 0  # polish each mixture by so many steps of Adam; 120 do most of what can be done


class Cubes(NamedTuple):
    """Volumes, cut: what is known of each, and the sections of them that the model takes.

    Attributes:
      values: in HU, or a unit of their own.
      centres_mm: of the sections.
    """

    nodules: Nodules
    details: "Details"
    values: np.ndarray
    centres_mm: list[Point]


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
    from gmmae.commands.api import restore

    # The run's own data are not needed, and may be gone: two synthetic volumes stand for them.
    model = restore(
        changed(config, data__source="synthetic", data__samples=2, data__validation=1, data__augment_with=""), asked.run
    )
    found = model.refine(to_density(cubes.values, data.window), asked.refine)
    with whole_folder(asked.out, mark=NPZ) as place:
        _write(place, data, cubes, found)
    tell(asked.out, [_said(found, asked.refine), *(f"{'':<12} {asked.out / name}" for name in (NPZ, CSV, TABLE, FOLDER))])
    return 0


def _cut(config: DataConfig, files: Sequence[Path]) -> Cubes:
    """The volumes as `data` would give them, by the source `cubes`."""
    from gmmae.data.extraction import cubes, places
    from gmmae.data.extraction.arrays import array_names
    from gmmae.data.extraction.prepare import load_prepared, prepare, say_on_stderr

    # Of cubes it is the window that says whether they are in HU; the run's own comes later, when they become densities.
    window = DataConfig.window if config.hu else config.window
    config = replace(config, source="cubes", root=str(files[0]), window=window)
    config = replace(config, category_column=DataConfig.category_column, group_column="")
    several = len(files) == 1 and files[0].suffix == ".npz" and files[0].is_file() and "volumes" in array_names(files[0])
    if not several and not (len(files) == 1 and files[0].is_dir()):
        prepared = prepare(replace(config, on_error="refuse"), say_on_stderr, plan=cubes.plan_files(files))
    else:
        prepared = prepare(config, say_on_stderr)
    nodules, details = load_prepared(prepared)
    values = central_section(nodules.values, config.ndim)
    known = zip(details.centre_mm.tolist(), details.edge_mm.tolist(), strict=True)
    centres = [places.section_mm(nodules.values.shape[1:], config.ndim, tuple(centre), edge) for centre, edge in known]
    return Cubes(nodules, details, values, centres)


def _write(out: Path, config: DataConfig, cubes: Cubes, found: Mapping[str, np.ndarray]) -> None:
    from gmmae.data.extraction import places

    shape, edges = cubes.values.shape[1:], cubes.details.edge_mm.tolist()
    names, mass = _names(cubes.nodules.names), masses(cubes.values, config.window)
    pairs = [
        places.mixture_mm(mean, covariance, shape, centre, edge)
        for mean, covariance, centre, edge in zip(found["means"], found["covariances"], cubes.centres_mm, edges, strict=True)
    ]
    means, covariances = (np.stack(part) for part in zip(*pairs, strict=True))
    (out / FOLDER).mkdir()
    np.savez(
        out / NPZ,
        names=np.array(names),
        weights=found["weights"],
        means_mm=means,
        covariances_mm2=covariances,
        centre_mm=np.array(cubes.centres_mm),
        edge_mm=cubes.details.edge_mm,
        mass=mass,
        loss=found["loss"],
        loss_before=found["loss_before"],
    )
    _write_csv(out / CSV, _components(names, found["weights"], means, covariances))
    _write_csv(out / TABLE, _nodules(names, cubes, mass, found))
    values = from_density(found["density"], mass, config.window)
    values = np.rint(values).clip(-32768, 32767).astype(np.int16) if config.hu else values.astype(np.float32)
    for name, reconstruction, centre, edge in zip(names, values, cubes.centres_mm, edges, strict=True):
        places.write(out / FOLDER / f"{name}.nii.gz", reconstruction, centre, edge)


def _names(names: Sequence[str]) -> list[str]:
    """Names for files: those of the volumes without their endings, and different from each other."""
    stems = [re.sub(r"[^\w.-]", "_", ENDING.sub("", name)) for name in names]
    return [stem if stem not in stems[:i] else f"{stem}_{i}" for i, stem in enumerate(stems)]


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
        diameter = cubes.details.diameter_mm[i]
        yield {
            "file": f"{FOLDER}/{name}.nii.gz",
            "category": cubes.nodules.categories[i],
            "diameter_mm": "" if np.isnan(diameter) else f"{diameter:.6g}",
            "described": cubes.nodules.names[i],
            "mass": f"{mass[i]:.6g}",
            "loss": f"{found['loss'][i]:.6g}",
            "loss_before": f"{found['loss_before'][i]:.6g}",
        }


def _write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _said(found: Mapping[str, np.ndarray], steps: int) -> str:
    before, after = (found[name].mean() for name in ("loss_before", "loss"))
    line = f"{len(found['loss'])} volumes described, mean loss {before:.4g}"
    if steps:
        line += f"; {after:.4g} after {steps} steps, {1e3 * found['seconds'].mean():.0f} ms a volume"
    return line
