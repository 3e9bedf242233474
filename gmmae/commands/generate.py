"""`gmmae generate RUN --count N --out FOLDER`: new nodules from a trained model."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gmmae.base.errors import InputError
from gmmae.base.rules import require
from gmmae.commands.api import Trained, load
from gmmae.commands.arguments import MISSING, Run, parse
from gmmae.data.config import DataConfig
from gmmae.data.volumes import Nodules

if TYPE_CHECKING:
    from gmmae.generation.generator import Generated


@dataclass(frozen=True)
class GenerateArguments:
    """Make new nodules with a trained model: cubes with masks, and a CSV that says how each was made."""

    run: Run  # the work directory of a run whose model has a decoder in cells (configs/nodules_generate.toml)
    out: Path = MISSING  # the folder to write; new or empty
    count: int = 100  # nodules to make
    category: str = ""  # of all of them; empty: as in the training set
    seed: int = 0  # another seed, other nodules
    size: int = 0  # voxels along each axis of a cube; 0: as many as the model was trained on
    bandwidth: float = 1.6  # noise of the prior, in standard deviations within a category; 0.6 for classifiers
    texture: float = 0.5  # strength of the texture that the mixtures leave out; 0: none
    into: Path | None = None  # .mhd scans as LUNA16's; copies of them with the nodules go to scans/ in the folder
    blending: Literal["poisson", "alpha"] = "poisson"  # how nodules pass into the lung around them


def command(arguments: Sequence[str], prog: str) -> int:
    """Generates, writes, draws, and says where everything is. Returns the exit code."""
    asked = parse(GenerateArguments(MISSING, MISSING), arguments, prog)
    _check(asked)
    start = time.perf_counter()
    from gmmae.generation import folder

    trained = load(asked.run)
    data = generating_data(trained)
    from gmmae.data import sources
    from gmmae.generation import generator as generators
    from gmmae.generation import prior as priors

    folder.require_empty(asked.out)
    if asked.into is not None:
        from gmmae.generation.insertion.hosts import list_scans

        list_scans(asked.into)  # says what is wrong with them before any work is done
    whole = sources.load_whole(replace(data, augment_with=""))  # new nodules are made of real ones only
    training, held_out = (whole.nodules.take(part) for part in whole.split)
    model = generators.Model(trained.config, trained.workload, trained.params, data.window, data.shape)
    generator = generators.fit(model, training, held_out)
    with suppress(OSError):  # a record beside the run, whose folder may be read-only
        priors.save(generator.prior, asked.run / "prior.npz")
    if generator.dead:
        print(f"{generator.dead} latent units of {asked.run} carry nothing: what they could say is missing from all nodules")
    strengths = generators.STRENGTHS._replace(bandwidth=asked.bandwidth)
    texture = generators.TEXTURE._replace(strength=asked.texture)
    found = generator.sample(
        asked.count, asked.category or None, asked.seed, size=asked.size, strengths=strengths, texture=texture
    )
    folder.write(found, asked.out, trained.record.run_id, asked.seed)
    seconds = time.perf_counter() - start
    print(f"{asked.count} nodules in {seconds:.1f} s; {found.rejected} more, too near to a training nodule, were drawn anew")
    print(asked.out / "nodules.csv")
    for path in _contact_sheets(asked, held_out, found, data.window):
        print(path)
    if asked.into is not None:
        _insert(asked, found)
    print(f"to train with them: --data.augment-with {asked.out}")
    return 0


def _check(asked: GenerateArguments) -> None:
    require(asked.count >= 1, "--count", "at least 1", asked.count)
    require(asked.size == 0 or asked.size >= 4, "--size", "0 or at least 4", asked.size)
    require(asked.bandwidth >= 0, "--bandwidth", "at least 0", asked.bandwidth)
    require(asked.texture >= 0, "--texture", "at least 0", asked.texture)


def generating_data(trained: Trained) -> DataConfig:
    """The section `data` of a run that can generate.

    Raises:
      InputError: its model decodes no latent vectors, or its data are not volumes.
    """
    data = getattr(trained.config.settings, "data", None)
    if trained.workload.decode is None or not isinstance(data, DataConfig) or data.ndim != 3:
        raise InputError(
            "RUN must have a model that makes volumes of latent vectors, model.decoder = cells with data.ndim = 3; got "
            "another: train one with --config nodules_generate"
        )
    return data


def _contact_sheets(asked: GenerateArguments, real: Nodules, found: "Generated", window: tuple[float, float]) -> list[Path]:
    """Real held-out nodules and generated ones in random order: one sheet to guess by, and one that tells."""
    from gmmae.figures import canvas
    from gmmae.figures.judgement import unnamed

    paths = []
    for name, labelled in (("contact_sheet", False), ("contact_sheet_labelled", True)):
        figure, _ = unnamed(real.values, found.nodules.values, window, asked.seed, labelled)
        paths.append(canvas.save(figure, asked.out / f"{name}.png"))
    return paths


def _insert(asked: GenerateArguments, found: "Generated") -> None:
    from gmmae.data.extraction.prepare import say_on_stderr
    from gmmae.generation.insertion.insert import insert

    assert asked.into is not None
    assert found.nodules.details is not None
    out = asked.out / "scans"
    summary = insert(found.nodules, found.nodules.details, asked.into, out, asked.seed, asked.blending, say_on_stderr)
    print("\n".join(summary.lines()))
