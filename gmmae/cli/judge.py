"""`gmmae judge`: generated nodules against real ones, as a page and in a dozen lines."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from gmmae.cli import arguments as parsing
from gmmae.cli.arguments import MISSING, Generated, Real
from gmmae.config import toml
from gmmae.config.rules import Options, Seed, between
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Nodules
from gmmae.generation.judging.donors import Origin
from gmmae.system.errors import InputError
from gmmae.system.files import require_free, tell
from gmmae.training.workdir import WorkDir

SHOWN = 3
"""Names in an error."""

Count = Annotated[int, between(0, 100_000)]


@dataclass(frozen=True)
class JudgeArguments(Options):
    """Judge generated nodules by real ones: how alike, how varied, how new."""

    real: Real  # real nodules that the generator was not fitted to, as data.source has them
    generated: Generated  # generated nodules: a folder of cubes, as `gmmae generate` writes it
    train: Path | None = None  # the nodules that it was fitted to, in the form of REAL: novelty is judged by them
    split: bool = False  # REAL has these too: divide it by data.validation and data.seed as training did
    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used; best, RUN/config.toml
    out: Path = Path("judgement")  # folder for the page and judgement.json; what is there is replaced
    count: Count = 0  # nodules of each set that are compared; 0: as many as the smallest set has
    seed: Seed = 0  # of what is chosen at random
    data: DataConfig = field(default_factory=lambda: DataConfig(source="cubes", padding="replicate"))


def command(arguments: Sequence[str], prog: str) -> int:
    """Judges, writes the page, prints a summary. Returns the exit code."""
    data = parsing.data_section(arguments, JudgeArguments(MISSING, MISSING).data)
    if data.source == "synthetic":
        data = replace(data, source="cubes")
    asked = parsing.parse(JudgeArguments(MISSING, MISSING, data=data), arguments, prog)
    _check(asked)
    from gmmae.generation.judging import donors, page
    from gmmae.generation.judging.judge import Scale, judge

    require_free(asked.out, mark=page.JSON)
    real, training = _real(asked)
    # Cubes are in HU where their window is CT's, which REAL's need not be.
    window = DataConfig.window if asked.data.hu else asked.data.window
    generated = _load("GENERATED", replace(asked.data, source="cubes", csv="", group_column="", window=window), asked.generated)
    origin = donors.read(asked.generated)
    _require_its_run(origin, asked)
    _require_unseen(real, training, origin, asked)
    _require_new(real, generated)
    found = judge(real, generated, training, asked.seed, scale=Scale(asked.data.window, asked.data.hu), count=asked.count)
    notes = _notes(asked)
    paths = page.write(asked.out, found, real, generated, training, asked.seed, notes)
    tell(asked.out, [*page.lines(found, real, generated, notes), *map(str, paths)])
    return 0


def _check(asked: JudgeArguments) -> None:
    if asked.split and asked.train is not None:
        raise InputError(
            f"--split and --train must not be given together: both say what was trained on; got --train {asked.train}"
        )
    if os.path.realpath(asked.real) == os.path.realpath(asked.generated):
        raise InputError(f"REAL and GENERATED must be two sets of nodules; both are {asked.real}: name another")


def _real(asked: JudgeArguments) -> tuple[Nodules, Nodules | None]:
    """The held-out nodules, and those of the training set where it is known."""
    from gmmae.data.splits import split

    real = _load("REAL", asked.data, asked.real)
    if asked.train is not None:
        return real, _load("--train", asked.data, asked.train)
    if not asked.split:
        return real, None
    train, held_out = split(real.groups, real.categories, asked.data.validation, asked.data.seed)
    return real.take(held_out), real.take(train)


def _load(name: str, data: DataConfig, root: Path) -> Nodules:
    from gmmae.data.extraction import prepare

    try:
        return prepare.load(replace(data, root=str(root)))
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


def _notes(asked: JudgeArguments) -> list[str]:
    """Whether generated cubes of one size were resampled to another one."""
    from gmmae.data.extraction import cubes, opening

    tasks = cubes.plan(replace(asked.data, source="cubes", csv="", group_column="", root=str(asked.generated))).tasks
    first, last = (opening.shape(task.file) for task in (tasks[0], tasks[-1]))
    if first != last or first == asked.data.volume_shape:
        return []
    size = " ".join(map(str, first[:1] if len(set(first)) == 1 else first))
    wanted = " × ".join(map(str, first))
    return [
        f"GENERATED's volumes have {wanted} voxels and were resampled to {' × '.join(map(str, asked.data.volume_shape))}: that "
        f"alone changes their texture; --data.shape {size} compares them as they are"
    ]


def _require_its_run(origin: Origin, asked: JudgeArguments) -> None:
    """
    Raises:
      InputError: the configuration is that of a run, and another run made the nodules.
    """
    if asked.config is None or not origin.runs:
        return
    workdir = WorkDir(toml.find(asked.config).parent)
    record = workdir.read_record() if toml.find(asked.config).name == workdir.config.name else None
    if record is not None and origin.runs != {record.run_id}:
        raise InputError(
            f"--config must be of the run that made GENERATED, {_some(sorted(origin.runs))} as its nodules.csv says; got "
            f"{asked.config}, of the run {record.run_id}: name the config.toml of the other"
        )


def _require_unseen(real: Nodules, training: Nodules | None, origin: Origin, asked: JudgeArguments) -> None:
    """
    Raises:
      InputError: GENERATED names held-out real nodules among those that it was made from.
    """
    from gmmae.generation.judging import donors

    known = set(training.names) if training is not None and not asked.split else set()  # a name may be in two folders
    seen = [name for name in donors.named(origin, real.names) if name not in known]
    if not seen:
        return
    runs = f"the run {_some(sorted(origin.runs))}" if origin.runs else "the run that made them"
    way_out = f"divide REAL as {runs} did: its --data.validation and --data.seed, or --config RUN/config.toml"
    if not asked.split:
        way_out = "leave them out of REAL, or name the training set with --train, or --split with the run's --config"
    raise InputError(
        f"REAL's {'held-out ' * asked.split}nodules must be new to the generator; GENERATED's nodules.csv names {len(seen)} of "
        f"the {len(real.names)} as what it was made from, such as {_some(seen)}: {way_out}"
    )


def _require_new(real: Nodules, generated: Nodules) -> None:
    """
    Raises:
      InputError: real nodules are among the generated ones, by name or voxel for voxel.
    """
    shared = sorted(set(real.names) & set(generated.names))
    if shared:
        raise InputError(
            f"GENERATED must hold new nodules; {len(shared)} of its {len(generated.names)} have names of REAL's, such as "
            f"{_some(shared)}: take them out, or rename what is new"
        )
    if real.values.shape[1:] != generated.values.shape[1:]:
        return
    name_of = dict(zip((volume.astype("float32").tobytes() for volume in real.values), real.names, strict=True))
    same = [
        (name, name_of[voxels])
        for name, volume in zip(generated.names, generated.values, strict=True)
        if (voxels := volume.astype("float32").tobytes()) in name_of
    ]
    if same:
        raise InputError(
            f"GENERATED must hold new nodules; {len(same)} of its {len(generated.names)} are voxel for voxel nodules of REAL, "
            f"such as {same[0][0]}, which is {same[0][1]}: take them out"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + " …" * (len(names) > SHOWN)
