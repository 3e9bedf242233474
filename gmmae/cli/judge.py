"""`gmmae judge`: compare generated nodules with real ones."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gmmae.cli.options import JudgeArguments
from gmmae.config import toml
from gmmae.data import sources
from gmmae.data.extraction import cubes, opening, prepare
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Nodules
from gmmae.generation.judging import donors, page
from gmmae.generation.judging.donors import Origin
from gmmae.generation.judging.judge import Scale, judge
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, print_result
from gmmae.training.workdir import WorkDir


def command(options: JudgeArguments) -> int:
    """Judges, writes the page, prints a summary. Returns the exit code."""
    if options.data.source == "synthetic":  # of the run whose configuration is given; real nodules are none
        options = replace(options, data=replace(options.data, source="cubes"))
    data, by_split = options.data, options.split != "all"
    if by_split and options.train is not None:
        rule = "--split and --train must not be given together: both name the training set"
        raise InputError(f"{rule}; got --train {options.train}")
    if os.path.realpath(options.real) == os.path.realpath(options.generated):
        raise InputError(f"REAL and GENERATED must be two sets of nodules; both are {options.real}: name another")
    claim_output(options.out, page.JSON)
    real, training = _load("REAL", data, options.real), None
    if options.train is not None:
        training = _load("--train", data, options.train)
    if by_split:
        train, validation = sources.divide(real, data)
        held_out, fitted = (validation, train) if options.split == "validation" else (train, validation)
        real, training = real.take(held_out), real.take(fitted)
    of_generated = sources.of_generated(data, options.generated)
    generated = _load("GENERATED", of_generated, options.generated)
    origin = donors.read(options.generated)
    _require_new(real, generated, training, origin, options)
    count = 0 if options.count == "all" else options.count
    judgement = judge(real, generated, training, options.seed, scale=Scale(data.window, data.hu), count=count)
    notes = []
    if options.split == "validation" and origin.runs:
        notes.append(
            "copies and novelty are favourable by construction, because `gmmae generate` rejects copies by distances of these "
            "same validation nodules: judge by nodules of a third set, with --train"
        )
    tasks = cubes.plan(of_generated).tasks
    first, last = (opening.shape(task.file) for task in (tasks[0], tasks[-1]))
    if first == last != data.volume_shape:
        size = " ".join(map(str, first[:1] if len(set(first)) == 1 else first))
        made, resampled = (" × ".join(map(str, shape)) for shape in (first, data.volume_shape))
        notes.append(
            f"GENERATED's volumes have {made} voxels and were resampled to {resampled}, which changes their texture; "
            f"--data.shape {size} compares them as they are"
        )
    paths = page.write(options.out, judgement, real, generated, training, options.seed, notes)
    print_result(options.out, [*page.lines(judgement, real, generated, notes), *map(str, paths)])
    return 0


def _load(name: str, data: DataConfig, root: Path) -> Nodules:
    try:
        return prepare.load(replace(data, root=str(root)))
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


def _require_new(real: Nodules, generated: Nodules, training: Nodules | None, origin: Origin, options: JudgeArguments) -> None:
    """Checks by names and records that each set is new to the other; `judge` compares voxels.

    Raises:
      InputError: the configuration is not of the run that made the nodules, GENERATED names real nodules among those that it
        was made from, or real nodules are in it.
    """
    runs, by_split = _some(sorted(origin.runs)), options.split != "all"
    config = None if options.config is None else toml.find(options.config)
    if config and origin.runs and config.name == WorkDir(config.parent).config.name:
        record = WorkDir(config.parent).read_record()
        if record is not None and origin.runs != {record.run_id}:
            raise InputError(
                f"--config must be of the run that made GENERATED, {runs} in its nodules.csv; got {options.config}, of the run "
                f"{record.run_id}: name the config.toml of the other"
            )
    known = set() if training is None or by_split else set(training.names)  # a name may be in two folders
    if seen := [name for name in donors.named(origin, real.names) if name not in known]:
        remedy = "leave them out of REAL, or name the training set with --train, or use --split validation with --config"
        if by_split:
            run = f"the run {runs}" if runs else "the run that made them"
            remedy = f"divide REAL as {run} did, with its --data.validation and --data.seed, or --config RUN/config.toml"
        raise InputError(
            f"REAL's {'held-out ' * by_split}nodules must be new to the generator; GENERATED's nodules.csv names {len(seen)} "
            f"of the {len(real.names)} as its sources, such as {_some(seen)}: {remedy}"
        )
    if shared := sorted(set(real.names) & set(generated.names)):
        raise InputError(
            f"GENERATED must hold new nodules; {len(shared)} of its {len(generated.names)} have names of REAL's, such as "
            f"{_some(shared)}: take them out, or rename what is new"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + " …" * (len(names) > 3)
