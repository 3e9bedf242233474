"""`gmmae judge`: generated nodules against real ones, as a page and in a dozen lines."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gmmae.base.errors import InputError
from gmmae.base.output import require_free, tell
from gmmae.base.rules import Options, Seed
from gmmae.commands import arguments as parsing
from gmmae.commands.arguments import MISSING, Data, Generated, Real, Switch
from gmmae.data.config import DataConfig
from gmmae.data.volumes import Nodules


@dataclass(frozen=True)
class JudgeArguments(Options):
    """Judge generated nodules by real ones: how alike, how varied, how new."""

    real: Real  # real nodules that the generator was not fitted to, as data.source has them
    generated: Generated  # generated nodules: a folder of cubes, as `gmmae generate` writes it
    train: Path | None = None  # the nodules that it was fitted to, in the form of REAL: novelty is judged by them
    split: Switch = False  # REAL has these too: divide it by data.validation and data.seed as training did
    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path = Path("judgement")  # folder for the page and judgement.json; what is there is replaced
    seed: Seed = 0  # of what is chosen at random
    data: Data = field(default_factory=lambda: DataConfig(source="cubes", fill="replicate"))


def command(arguments: Sequence[str], prog: str) -> int:
    """Judges, writes the page, prints a summary. Returns the exit code."""
    data = parsing.data_section(arguments, JudgeArguments(MISSING, MISSING).data)
    if data.source == "synthetic":
        data = replace(data, source="cubes")
    asked = parsing.parse(JudgeArguments(MISSING, MISSING, data=data), arguments, prog, markers=())
    if asked.split and asked.train is not None:
        raise InputError(
            f"--split and --train must not be given together: both say what was trained on; got --train {asked.train}"
        )
    from gmmae.generation.judge import judge
    from gmmae.report import judgement

    require_free(asked.out, mark=judgement.JSON)
    real, training = _real(asked)
    generated = _load("GENERATED", replace(asked.data, source="cubes", csv="", group_column=""), asked.generated)
    found = judge(real, generated, training, asked.seed, asked.data.window)
    paths = judgement.write(asked.out, found, real, generated, training, asked.data.window, asked.seed)
    tell(asked.out, [*judgement.lines(found, real, generated), *map(str, paths)])
    return 0


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
