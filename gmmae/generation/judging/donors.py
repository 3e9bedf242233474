"""The real nodules behind generated ones: a judgement must compare with others."""

from pathlib import Path

from gmmae.data.volumes import Nodules
from gmmae.system.errors import InputError
from gmmae.training.workdir import WorkDir


def cells(generated: Nodules, *columns: str) -> list[str]:
    """The different words in some columns."""
    known = map(generated.column, columns)
    return sorted({cell for column in known if column is not None for cell in column.tolist()} - {""})


def require_run(generated: Nodules, config: Path) -> None:
    """Refuses the `config.toml` of another run than the one that made the nodules."""
    workdir, runs = WorkDir(config.parent), cells(generated, "run")
    record = workdir.read_record() if config.name == workdir.config.name else None
    if record is not None and runs not in ([], [record.run_id]):
        raise InputError(
            f"--config must be of the run that made GENERATED, {_some(runs)} in its nodules.csv; got {config}, of the run "
            f"{record.run_id}: name the config.toml of the other"
        )


def require_new(real: Nodules, generated: Nodules, training: Nodules | None, by_split: bool) -> None:
    """Checks by names and records that real and generated nodules are new to each other; `judge` compares voxels.

    `by_split` says that `real` and `training`, which the generator was fitted to, are parts of one folder.
    """
    # A cell separates names by spaces, and a name may have some.
    text = f" {'  '.join(cells(generated, 'nearest', 'shape_donors', 'texture_donors'))} "
    sources, known = set(text.split(" ")), set() if training is None or by_split else set(training.names)
    seen = [name for name in real.names if name in sources or (" " in name and f" {name} " in text)]
    if seen := [name for name in seen if name not in known]:  # a name may be in two folders
        remedy = "leave them out of REAL, or name the training set with --train, or use --split validation with --config"
        if by_split:
            run = f"the run {_some(runs)}" if (runs := cells(generated, "run")) else "the run that made them"
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


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + " …" * (len(names) > 3)
