"""`gmmae generate RUN --count N --out FOLDER`: new nodules from a trained model."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from gmmae.cli.arguments import MISSING, Run, parse
from gmmae.config.rules import Options, Rule, Seed, between
from gmmae.config.schema import Config
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Nodules
from gmmae.system.errors import InputError
from gmmae.system.files import require_free, tell, whole_folder
from gmmae.training.trained import load, run_config

if TYPE_CHECKING:
    from gmmae.generation.generator import Generated, Generator

SHEETS = {"contact_sheet.png": False, "contact_sheet_labelled.png": True}
"""The contact sheets, and whether each tells which nodules are generated."""
SCANS = "scans"
VOXEL_BYTES = 50
"""Of memory that each voxel takes while nodules are made: four arrays of float64, two of sorted places, and smaller ones."""

Size = Annotated[int, Rule("0, or 4 to 512", lambda value: value == 0 or 4 <= value <= 512)]
Strength = Annotated[float, between(0, 100)]


@dataclass(frozen=True)
class GenerateArguments(Options):
    """Make new nodules with a trained model: cubes with masks, and a CSV that says how each was made."""

    run: Run  # a run that you trust (it names Python that is executed), with a decoder in cells (configs/nodules_generate.toml)
    out: Path = MISSING  # the folder to write; new or empty
    count: Annotated[int, between(1, 100_000)] = 100  # nodules to make
    category: str = ""  # of all of them; empty: as in the training set
    seed: Seed = 0  # another seed, other nodules
    size: Size = 0  # voxels along the longest axis of a cube; 0: as many as the model was trained on
    bandwidth: Strength = 1.6  # noise of the prior, in standard deviations within a category; 0.6 for classifiers
    texture: Strength = 0.5  # strength of the texture that the mixtures leave out; 0: none
    into: Path | None = None  # .mhd scans as LUNA16's; copies of them with the nodules go to scans/ in the folder
    blending: Literal["poisson", "alpha"] = "poisson"  # how nodules pass into the lung around them


def command(arguments: Sequence[str], prog: str) -> int:
    """Generates, writes, draws, and says where everything is. Returns the exit code."""
    asked = parse(GenerateArguments(MISSING, MISSING), arguments, prog)
    start = time.perf_counter()
    data = _checked(asked)
    trained = load(asked.run)
    if trained.workload.decode is None:
        raise _no_generator()
    from gmmae.data import sources
    from gmmae.generation import generator as generators

    whole = sources.load(replace(data, augment_with=""))  # new nodules are made of real ones only
    training, held_out = (whole.nodules.take(part) for part in whole.split)
    model = generators.Model(trained.config, trained.workload, trained.params, data.window, data.sample_shape)
    generator = generators.fit(model, training, held_out)
    lines = [*_keep_prior(generator, asked.run), *_dead(generator, asked.run)]
    strengths = generators.STRENGTHS._replace(bandwidth=asked.bandwidth)
    texture = generators.TEXTURE._replace(strength=asked.texture)
    found = generator.sample(
        asked.count, asked.category or None, asked.seed, size=asked.size, strengths=strengths, texture=texture
    )
    inserted = _write(asked, found, held_out, trained.record.run_id, data.window)
    seconds = time.perf_counter() - start
    lines.append(
        f"{asked.count} nodules in {seconds:.1f} s; {found.rejected} more, too near to a training nodule, were drawn again"
    )
    lines += [str(asked.out / name) for name in ("nodules.csv", *SHEETS)]
    tell(asked.out, [*lines, *inserted, f"to train with them: --data.augment-with {asked.out}"])
    return 0


def _checked(asked: GenerateArguments) -> DataConfig:
    """The section `data` of the run; says what is wrong before any data are read."""
    data = _generating_data(run_config(asked.run))
    from gmmae.generation.generator import resized
    from gmmae.generation.insertion.hosts import list_scans, read_annotations

    require_free(asked.out)
    _require_memory(asked.count, resized(data.sample_shape, asked.size))
    if asked.into is not None:
        list_scans(asked.into)
        read_annotations(asked.into)
    return data


def _require_memory(count: int, shape: tuple[int, ...]) -> None:
    """Says that nodules do not fit: Linux would end the program without a word.

    Raises:
      InputError: they need more than this machine has.
    """
    needed, there = count * math.prod(shape) * VOXEL_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        size = " × ".join(map(str, shape))
        raise InputError(
            f"--count nodules of --size must fit into memory; got {count} of {size} voxels, which take {needed / 1e9:.0f} of "
            f"{there / 1e9:.0f} GB: make fewer in a call, each with another --seed"
        )


def _keep_prior(generator: "Generator", run: Path) -> list[str]:
    """Writes a record beside the run; a line where that cannot be, because its folder may be read-only."""
    from gmmae.generation import prior

    place = run / "prior.npz"
    try:
        prior.save(generator.prior, place)
    except OSError as error:
        return [f"the prior was not kept: {place} cannot be written ({error.strerror or error})"]
    return []


def _dead(generator: "Generator", run: Path) -> list[str]:
    if not generator.inactive_units:
        return []
    return [f"{generator.inactive_units} latent units of {run} carry nothing: what they could say is missing from all nodules"]


def _write(asked: GenerateArguments, found: "Generated", held_out: Nodules, run: str, window: tuple[float, float]) -> list[str]:
    """Writes all that goes into the folder. Returns what is to be said of the scans."""
    from gmmae.generation import folder

    with whole_folder(asked.out) as place:
        folder.write(found, place, run, asked.seed)
        _contact_sheets(place, held_out, found, window, asked.seed)
        return [] if asked.into is None else _insert(asked, found, asked.into, place)


def _generating_data(config: Config) -> DataConfig:
    """The section `data` of a run that can generate.

    Raises:
      InputError: its data are not volumes.
    """
    data = getattr(config.settings, "data", None)
    if not isinstance(data, DataConfig) or data.ndim != 3:
        raise _no_generator()
    return data


def _no_generator() -> InputError:
    return InputError(
        "RUN must have a model that makes volumes of latent vectors, model.decoder = lattice with data.ndim = 3; got another: "
        "train one with --config nodules_generate"
    )


def _contact_sheets(out: Path, real: Nodules, found: "Generated", window: tuple[float, float], seed: int) -> None:
    """Real held-out nodules and generated ones in random order: one sheet to guess by, and one that tells."""
    from gmmae.generation.judging.figures import unnamed
    from gmmae.plotting import canvas

    for name, labelled in SHEETS.items():
        figure, _ = unnamed(real.values, found.nodules.values, window, seed, labelled)
        canvas.save(figure, out / name)


def _insert(asked: GenerateArguments, found: "Generated", scans: Path, out: Path) -> list[str]:
    from gmmae.data.extraction.prepare import say_on_stderr
    from gmmae.generation.insertion.insert import insert

    assert found.nodules.details is not None
    summary = insert(found.nodules, found.nodules.details, scans, out / SCANS, asked.seed, asked.blending, say_on_stderr)
    return summary._replace(out=asked.out / SCANS).lines()
