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

MAX_SHOWN_NAMES = 3
"""Maximum number of names in an error."""


def command(options: JudgeArguments) -> int:
    """Judges, writes the page, prints a summary. Returns the exit code."""
    if options.data.source == "synthetic":  # of the run whose configuration is given; real nodules are none
        options = replace(options, data=replace(options.data, source="cubes"))
    _check(options)
    claim_output(options.out, page.JSON)
    real, training = _load_real(options)
    generated = _load("GENERATED", sources.of_generated(options.data, options.generated), options.generated)
    origin = donors.read(options.generated)
    _require_same_run(origin, options)
    _require_unseen(real, training, origin, options)
    _require_new(real, generated)
    judgement = judge(
        real,
        generated,
        training,
        options.seed,
        scale=Scale(options.data.window, options.data.hu),
        count=0 if options.count == "all" else options.count,
    )
    notes = _notes(options, origin)
    paths = page.write(options.out, judgement, real, generated, training, options.seed, notes)
    print_result(options.out, [*page.lines(judgement, real, generated, notes), *map(str, paths)])
    return 0


def _check(options: JudgeArguments) -> None:
    if options.split != "all" and options.train is not None:
        raise InputError(
            f"--split and --train must not be given together: both name the training set; got --train {options.train}"
        )
    if os.path.realpath(options.real) == os.path.realpath(options.generated):
        raise InputError(f"REAL and GENERATED must be two sets of nodules; both are {options.real}: name another")


def _load_real(options: JudgeArguments) -> tuple[Nodules, Nodules | None]:
    """Returns the held-out nodules, and those of the training set if it is known."""
    real = _load("REAL", options.data, options.real)
    if options.train is not None:
        return real, _load("--train", options.data, options.train)
    if options.split == "all":
        return real, None
    train, validation = sources.divide(real, options.data)
    held_out, fitted = (validation, train) if options.split == "validation" else (train, validation)
    return real.take(held_out), real.take(fitted)


def _load(name: str, data: DataConfig, root: Path) -> Nodules:
    try:
        return prepare.load(replace(data, root=str(root)))
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


def _notes(options: JudgeArguments, origin: Origin) -> list[str]:
    """Returns notes if copies are measured where they were rejected, and if generated cubes were resampled."""
    notes = []
    if options.split == "validation" and origin.runs:
        notes.append(
            "copies and novelty are favourable by construction, because `gmmae generate` rejects copies by distances of these "
            "same validation nodules: judge by nodules of a third set, with --train"
        )
    tasks = cubes.plan(sources.of_generated(options.data, options.generated)).tasks
    first, last = (opening.shape(task.file) for task in (tasks[0], tasks[-1]))
    if first != last or first == options.data.volume_shape:
        return notes
    size = " ".join(map(str, first[:1] if len(set(first)) == 1 else first))
    wanted = " × ".join(map(str, first))
    resampled = " × ".join(map(str, options.data.volume_shape))
    return [
        *notes,
        f"GENERATED's volumes have {wanted} voxels and were resampled to {resampled}, which changes their texture; "
        f"--data.shape {size} compares them as they are",
    ]


def _require_same_run(origin: Origin, options: JudgeArguments) -> None:
    """Checks that the configuration is that of the run that made the nodules.

    Raises:
      InputError: it is that of another run.
    """
    if options.config is None or not origin.runs:
        return
    workdir = WorkDir(toml.find(options.config).parent)
    record = workdir.read_record() if toml.find(options.config).name == workdir.config.name else None
    if record is not None and origin.runs != {record.run_id}:
        raise InputError(
            f"--config must be of the run that made GENERATED, {_first_names(sorted(origin.runs))} in its nodules.csv; "
            f"got {options.config}, of the run {record.run_id}: name the config.toml of the other"
        )


def _require_unseen(real: Nodules, training: Nodules | None, origin: Origin, options: JudgeArguments) -> None:
    """Checks that the real nodules are new to the generator.

    Raises:
      InputError: GENERATED names real nodules among those that it was made from.
    """
    known = set(training.names) if training is not None and options.split == "all" else set()  # a name may be in two folders
    known_to_generator = [name for name in donors.named(origin, real.names) if name not in known]
    if not known_to_generator:
        return
    runs = f"the run {_first_names(sorted(origin.runs))}" if origin.runs else "the run that made them"
    kind, remedy = (
        "held-out ",
        f"divide REAL as {runs} did, with its --data.validation and --data.seed, or --config RUN/config.toml",
    )
    if options.split == "all":
        kind, remedy = (
            "",
            "leave them out of REAL, or name the training set with --train, or use --split validation with --config",
        )
    raise InputError(
        f"REAL's {kind}nodules must be new to the generator; GENERATED's nodules.csv names {len(known_to_generator)} of "
        f"the {len(real.names)} as its sources, such as {_first_names(known_to_generator)}: {remedy}"
    )


def _require_new(real: Nodules, generated: Nodules) -> None:
    """Checks that the generated nodules are new by their names; `judge` compares voxels.

    Raises:
      InputError: real nodules are among them.
    """
    shared = sorted(set(real.names) & set(generated.names))
    if shared:
        raise InputError(
            f"GENERATED must hold new nodules; {len(shared)} of its {len(generated.names)} have names of REAL's, such as "
            f"{_first_names(shared)}: take them out, or rename what is new"
        )


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_SHOWN_NAMES]) + " …" * (len(names) > MAX_SHOWN_NAMES)
