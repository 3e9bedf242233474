"""`gmmae describe`: volumes as mixtures in world millimetres, with reconstructions that overlay them."""

import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from gmmae.cli.arguments import data_of
from gmmae.cli.options import DescribeArguments
from gmmae.config.schema import Config
from gmmae.data import writing
from gmmae.data.extraction.annotations import COORDINATES, SPACINGS
from gmmae.data.extraction.tasks import ENDINGS
from gmmae.data.given import Cubes, cut
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import from_density, masses, own_columns, to_density
from gmmae.plotting.slices import described_volumes
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, csv_text, print_result, whole_folder, write_text
from gmmae.training import preparation
from gmmae.training.trained import Trained, restore, run_config
from gmmae.workloads.configuration import on_its_data, without_own_csv

NPZ, CSV, TABLE, FOLDER, PICTURE = "mixtures.npz", "mixtures.csv", "nodules.csv", "reconstructions", "described.png"

MAX_VOXELS = 2**21
"""Described at once. With all intermediate results they take some hundred megabytes."""

MAX_NAME_BYTES = 200
"""Before a number and an ending are added. File systems allow 255."""

MAX_SHOWN = 6
"""Volumes of the picture, evenly spaced among all."""

MAX_TITLE_NAME = 13
"""Characters of a name in the picture."""

ENDING = re.compile(rf"({'|'.join(map(re.escape, ENDINGS))})(?=_\d+$|$)")

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
    "group": "what a split keeps together: its patient, or its scan where none is named",
    "category": "category of the nodule, if it is known",
    "diameter_mm": "diameter in mm, if it is known",
    "described": "name of the described volume",
    "path": "its file",
    "mass": "integral of the windowed volume over [-1, 1]^3, by which its density was divided",
    "loss": "loss of the mixture, after `--refine`",
    "loss_before": "loss of the network's mixture",
    "COLUMN": "a column of the data's CSV, one each; called csv_COLUMN if its name is one of these, or that of a mask or place",
}

TAKEN = ("mask", *COORDINATES, *SPACINGS)
"""Columns that would say how the reconstruction is read."""


def command(options: DescribeArguments, config: Config) -> None:
    """Describes the volumes, and writes mixtures and reconstructions."""
    data = data_of(config, "RUN", config.workload)
    if not options.files and (data.source == "synthetic" or data.root is None):
        raise InputError(
            "FILE must be one volume or more, a folder with a nodules.csv, a folder shaped like LUNA16, or an .npz of "
            "volumes; got none"
        )
    claim_output(options.out, NPZ)
    own = run_config(options.run)
    cut_by = without_own_csv(config, own) if options.files else on_its_data(config, own)
    cubes = cut(cut_by.settings.data, options.files)
    model = restore(config, options.run)
    with whole_folder(options.out, mark=NPZ) as place:
        summary = _describe(model, data, cubes, options.refine, place)
    files = (options.out / name for name in (NPZ, CSV, TABLE, FOLDER, PICTURE))
    print_result(options.out, [*cubes.notes, summary, *files])


def _describe(model: Trained, data: DataConfig, cubes: Cubes, steps: int, out: Path) -> str:
    table, names = cubes.table, _file_names(cubes.table["name"].tolist())
    batch = preparation.EVAL_DEVICE_BATCH
    max_count = batch * max(1, MAX_VOXELS // (batch * math.prod(cubes.sections.shape[1:])))
    shown = np.linspace(0, len(names) - 1, min(MAX_SHOWN, len(names))).round()
    pictured, parts = [], []
    (out / FOLDER).mkdir()
    for first in range(0, len(names), max_count):
        values = cubes.sections[first : first + max_count]
        mass = masses(values, data.window, cubes.paths[first : first + len(values)])
        # A smaller last part would need another compiled program, which may round differently.
        padded = np.concatenate([values, np.repeat(values[-1:], max(batch - len(values), 0) if first else 0, 0)])
        results = {name: array[: len(values)] for name, array in model.refine(to_density(padded, data.window), steps).items()}
        reconstructed = from_density(results.pop("density"), mass, data.window)
        stored = np.rint(reconstructed).clip(-32768, 32767).astype(np.int16) if data.hu else reconstructed.astype(np.float32)
        in_world = []
        for n, i in enumerate(range(first, first + len(values))):
            name, centre, edge, diameter = names[i], cubes.centres_mm[i], float(table["edge_mm"][i]), table["diameter_mm"][i]
            writing.write(out / FOLDER / f"{name}.nii.gz", stored[n], centre, edge)
            mixture = results["means"][n], results["covariances"][n]
            in_world.append(writing.mixture_mm(*mixture, values.shape[1:], centre, edge))
            if i in shown:  # of a long name, such as a scan's UID, the end tells nodules apart
                short = name if len(name) <= MAX_TITLE_NAME else f"…{name[1 - MAX_TITLE_NAME :]}"
                size = f", {diameter:.1f} mm" if math.isfinite(diameter) else ""
                pictured.append((values[n], reconstructed[n], f"{short}{size}, loss {results['loss'][n]:.2g}"))
        means, covariances = map(np.stack, zip(*in_world, strict=True))
        parts.append(results | {"mass": mass, "means_mm": means, "covariances_mm2": covariances})
    kept = ("weights", "means_mm", "covariances_mm2", "mass", "loss", "loss_before", "seconds")
    found = {name: np.concatenate([part[name] for part in parts]) for name in kept}
    seconds = found.pop("seconds")
    places = {"paths": cubes.paths, "centre_mm": cubes.centres_mm, "edge_mm": table["edge_mm"]}
    np.savez(out / NPZ, allow_pickle=False, names=names, **places, **found)
    axes = "xyz"[: found["means_mm"].shape[-1]]
    pairs = [*combinations_with_replacement(range(len(axes)), 2)]
    components = [
        {"name": name, "component": k, "weight": f"{weight:.6g}"}
        | {f"{axis}_mm": f"{found['means_mm'][n, k, i]:.6g}" for i, axis in enumerate(axes)}
        | {f"{axes[i]}{axes[j]}_mm2": f"{found['covariances_mm2'][n, k, i, j]:.6g}" for i, j in pairs}
        for n, name in enumerate(names)
        for k, weight in enumerate(found["weights"][n])
    ]
    own = own_columns(table, (*NODULE_COLUMNS, *TAKEN))
    nodules = [
        {
            "file": f"{FOLDER}/{name}.nii.gz",
            "group": table["group"][i],
            "category": table["category"][i],
            "diameter_mm": "" if math.isnan(diameter) else f"{diameter:.6g}",
            "described": table["name"][i],
            "path": cubes.paths[i],
            **{column: f"{found[column][i]:.6g}" for column in ("mass", "loss", "loss_before")},
            **{column: values[i] for column, values in own.items()},
        }
        for i, (name, diameter) in enumerate(zip(names, table["diameter_mm"], strict=True))
    ]
    for file, rows in ((CSV, components), (TABLE, nodules)):
        write_text(out / file, csv_text(rows, rows[0]))
    before, after, titles = zip(*pictured, strict=True)
    described_volumes(out / PICTURE, np.stack(before), np.stack(after), titles, data.window)
    described = f"{len(names)} volumes described, mean loss {found['loss_before'].mean():.4g}"
    return described + f"; {found['loss'].mean():.4g} after {steps} steps, {1e3 * seconds.mean():.0f} ms a volume" * bool(steps)


def _file_names(names: Sequence[str]) -> list[str]:
    stems = [re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", ENDING.sub("", name))) for name in names]
    stems = [stem.encode()[:MAX_NAME_BYTES].decode(errors="ignore") or "volume" for stem in stems]
    return stems if len(set(stems)) == len(stems) else [f"{i}_{stem}" for i, stem in enumerate(stems)]
