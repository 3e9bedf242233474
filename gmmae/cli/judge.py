"""`gmmae judge`."""

import os
from dataclasses import replace
from pathlib import Path

from gmmae.cli.options import JudgeArguments
from gmmae.config import toml
from gmmae.data import sources
from gmmae.data.extraction import folders, prepare, scan
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Nodules
from gmmae.generation.judging import donors, page
from gmmae.generation.judging.judge import judge
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, print_result

OTHER_FILLED = 0.05
"""Share of the cubes that is filled in generated nodules beyond that in real ones, from which on a line says so."""


def command(options: JudgeArguments) -> None:
    """Judges, writes the page, prints a summary."""
    data, by_split = options.data, options.split != "all"
    if data.source == "synthetic":  # of the run whose configuration is given; real nodules are none
        data = replace(data, source="cubes")
    if by_split and options.train is not None:
        raise InputError(
            f"--split and --train must not be given together: both name the training set; got --train {options.train}"
        )
    if os.path.realpath(options.real) == os.path.realpath(options.generated):
        raise InputError(f"REAL and GENERATED must be two sets of nodules; both are {options.real}: name another")
    claim_output(options.out, page.JSON)
    real = _load("REAL", data, options.real)
    training = None if options.train is None else _load("--train", data, options.train)
    if by_split:
        train, validation = sources.divide(real, data)
        held_out, fitted = (validation, train) if options.split == "validation" else (train, validation)
        real, training = real.take(held_out), real.take(fitted)
    of_generated = sources.of_folder(data, options.generated)
    generated = _load("GENERATED", of_generated, options.generated)
    if options.config is not None:
        donors.require_run(generated, toml.find(options.config))
    donors.require_new(real, generated, training, by_split)
    judgement = judge(
        real,
        generated,
        training,
        options.seed,
        window=data.window,
        hu=data.hu,
        count=0 if options.count == "all" else options.count,
    )
    notes = []
    if options.split == "validation" and donors.cells(generated, "run"):
        notes.append(
            "copies and novelty are favourable by construction, because gmmae generate rejects copies by distances of these "
            "same validation nodules: judge by nodules of a third set, with --train"
        )
    beyond, of_real = (float(nodules.filled.mean()) for nodules in (generated, real))
    if beyond > of_real + OTHER_FILLED:
        notes.append(
            f"{beyond:.0%} of GENERATED's cubes lie outside of their volumes, and {of_real:.0%} of REAL's: the filling is "
            "judged too, so give the --data.crop with which they were generated"
        )
    tasks = folders.plan_cubes(of_generated).tasks
    first, last = (scan.shape(task.file) for task in (tasks[0], tasks[-1]))
    if first == last != data.volume_shape:
        size = " ".join(map(str, first[:1] if len(set(first)) == 1 else first))
        made, resampled = (" × ".join(map(str, shape)) for shape in (first, data.volume_shape))
        notes.append(
            f"GENERATED's volumes have {made} voxels and were resampled to {resampled}, which changes their texture; "
            f"--data.shape {size} compares them as they are"
        )
    paths = page.write(options.out, judgement, options.seed, notes)
    print_result(options.out, [*page.lines(judgement, notes), *paths])


def _load(name: str, data: DataConfig, root: Path) -> Nodules:
    try:
        return prepare.load(replace(data, root=str(root)))
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error
