"""`gmmae generate`: make new nodules with a trained model."""

import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from gmmae.cli.options import GenerateArguments
from gmmae.data import sources
from gmmae.data.extraction.prepare import SOURCES, say_on_stderr
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Nodules
from gmmae.generation import folder
from gmmae.generation import generator as generators
from gmmae.generation.generator import Generated, Wanted, resized
from gmmae.generation.insertion.hosts import require_scans
from gmmae.generation.insertion.insert import insert
from gmmae.generation.judging.figures import contact_sheet
from gmmae.plotting import canvas
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, print_result, whole_folder
from gmmae.training import fingerprint
from gmmae.training.fingerprint import Fingerprint
from gmmae.training.trained import Trained, load, run_config

SHEETS = {"contact_sheet.png": False, "contact_sheet_labelled.png": True}
"""The contact sheets, and whether each one marks the generated nodules."""
SCANS = "scans"
MALIGNANCY = "malignancy"
"""Column of the training CSV with the readers' score of malignancy."""
VOXEL_BYTES = 50
"""Bytes of memory for each voxel of a nodule in the making."""
DENSITY_VOXEL_BYTES = 450
"""Further bytes for each voxel of the one nodule whose mixture is evaluated on a finer grid. 417 were measured."""


def command(options: GenerateArguments) -> int:
    """Generates, writes, draws, and prints where everything is. Returns the exit code."""
    start = time.perf_counter()
    data = _check(options)
    trained = load(options.run)
    if trained.workload.decode is None:
        raise _no_generator()
    known = fingerprint.checked(options.run, fingerprint.load(trained.config))
    whole = sources.load(replace(data, augment_with=None))  # new nodules are made of real ones only
    training, validation = (whole.nodules.take(part) for part in whole.split)
    wanted = Wanted(options.category, options.diameter_mm, options.malignancy)
    malignancy = _malignancy(options, data, training)
    generators.fitting(wanted, training, malignancy)  # what is asked for in vain is said at once
    generator = generators.fit(trained, training, validation, malignancy)
    lines: list[str] = []
    if generator.inactive_units:
        lines.append(f"{generator.inactive_units} latent units of {options.run} are unused, so the nodules vary less")
    generated = generator.sample(
        options.count, wanted, options.seed, size=_size(options), bandwidth=options.bandwidth, texture=options.texture
    )
    inserted = _write(options, generated, validation, trained, known)
    seconds = time.perf_counter() - start
    made = f"{options.count} nodule{'s' * (options.count > 1)}"
    lines.append(f"{made} in {seconds:.1f} s; {generated.rejected} too similar to a training nodule were drawn again")
    lines += [str(options.out / name) for name in ("nodules.csv", *SHEETS)]
    print_result(options.out, [*lines, *inserted, f"to train with them: --data.augment-with {options.out}"])
    return 0


def _malignancy(options: GenerateArguments, data: DataConfig, training: Nodules) -> Float[np.ndarray, " samples"] | None:
    """Returns the training nodules' scores of malignancy, NaN where there is none; None if they are not asked for or known.

    Raises:
      InputError: the column has other words than numbers.
    """
    if options.malignancy is None or data.source not in SOURCES or data.folder.suffix == ".npz":
        return None
    plan = SOURCES[data.source](replace(data, category_column=MALIGNANCY))
    words = {item.name: item.category for task in plan.tasks for item in task.items}
    try:
        return np.array([float(words[name] or "nan") for name in training.names])
    except ValueError as error:
        raise InputError(f"--malignancy needs numbers in the training CSV's column {MALIGNANCY}; {error}") from error


def _size(options: GenerateArguments) -> int:
    return 0 if options.size == "auto" else options.size


def _check(options: GenerateArguments) -> DataConfig:
    """Checks the arguments before any data are read. Returns the section `data` of the run."""
    data = getattr(run_config(options.run).settings, "data", None)
    if not isinstance(data, DataConfig) or data.ndim != 3:
        raise _no_generator()
    claim_output(options.out)
    shape = resized(data.sample_shape, _size(options))
    _require_memory(options.count, shape, DENSITY_VOXEL_BYTES if shape != data.sample_shape else 0)
    if options.insert_into is not None:
        require_scans(options.insert_into)
    return data


def _require_memory(count: int, shape: tuple[int, ...], density_bytes: int) -> None:
    """Checks that the nodules fit into memory, because Linux would end the program without a message.

    Args:
      count: number of nodules.
      shape: shape of each.
      density_bytes: bytes for each voxel of one nodule at a time, beside those of all nodules.

    Raises:
      InputError: they need more than this machine has.
    """
    needed = (count * VOXEL_BYTES + density_bytes) * math.prod(shape)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        size = " × ".join(map(str, shape))
        raise InputError(
            f"--count nodules of --size must fit into memory; got {count} of {size} voxels, which take {needed / 1e9:.0f} of "
            f"{available / 1e9:.0f} GB: make fewer in a call, each with another --seed, or lower --size"
        )


def _write(
    options: GenerateArguments, generated: Generated, validation: Nodules, trained: Trained, known: Fingerprint
) -> list[str]:
    """Writes all files of the folder. Returns lines about the scans."""
    with whole_folder(options.out) as place:
        folder.write(generated, place, trained.record.run_id, options.seed)
        fingerprint.write(known, place)
        _contact_sheets(place, validation, generated, trained.config.settings.data.window, options.seed)
        if options.insert_into is None:
            return []
        scans = place / SCANS
        summary = insert(generated.nodules, options.insert_into, scans, options.seed, say_on_stderr)
        return summary._replace(out=options.out / SCANS).lines()


def _no_generator() -> InputError:
    return InputError(
        "RUN must have a model that makes volumes of latent vectors, model.decoder = lattice with data.ndim = 3; got another: "
        "train one with --config nodules_generate"
    )


def _contact_sheets(out: Path, real: Nodules, generated: Generated, window: tuple[float, float], seed: int) -> None:
    """Draws real held-out nodules and generated ones in random order, on one sheet without and one with labels."""
    for name, labelled in SHEETS.items():
        figure, _ = contact_sheet(real.values, generated.nodules.values, window, seed, labelled)
        canvas.save(figure, out / name)
