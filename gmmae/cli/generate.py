"""`gmmae generate`: make new nodules with a trained model."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from gmmae.cli.arguments import MISSING, Run, optional, parse
from gmmae.config.rules import Options, Seed, between
from gmmae.config.schema import Config
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import Nodules
from gmmae.system.errors import InputError
from gmmae.system.files import print_result, require_free, whole_folder
from gmmae.training.trained import load, run_config

if TYPE_CHECKING:
    from gmmae.generation.generator import Generated, Generator

SHEETS = {"contact_sheet.png": False, "contact_sheet_labelled.png": True}
"""The contact sheets, and whether each one marks the generated nodules."""
SCANS = "scans"
VOXEL_BYTES = 50
"""Bytes of memory for each voxel of a nodule in the making."""

Size = Annotated[int | Literal["auto"], optional(between(4, 512), "auto")]
Strength = Annotated[float, between(0, 100)]


@dataclass(frozen=True)
class GenerateArguments(Options):
    """Make new nodules with a trained model: cubes with masks, and a CSV with the origin of each."""

    run: Run  # a run that you trust (it names Python that is executed), with a lattice decoder (configs/nodules_generate.toml)
    out: Path = MISSING  # the folder to write; new or empty
    count: Annotated[int, between(1, 100_000)] = 100  # nodules to make
    category: str | None = None  # category of all nodules; none: as in the training set
    seed: Seed = 0  # random seed of the nodules
    size: Size = "auto"  # voxels along the longest axis of a cube; auto: as in the training set
    bandwidth: Strength = 1.6  # noise of the prior, in standard deviations within a category; 0.6 for classifiers
    texture: Strength = 0.5  # strength of the texture that the mixtures leave out
    insert_into: Path | None = None  # .mhd scans shaped like LUNA16's; copies with the nodules go to scans/ in the folder
    blending: Literal["poisson", "alpha"] = "poisson"  # method that blends nodules into the lung around them


def command(arguments: Sequence[str], prog: str) -> int:
    """Generates, writes, draws, and prints where everything is. Returns the exit code."""
    options = parse(GenerateArguments(MISSING, MISSING), arguments, prog)
    start = time.perf_counter()
    data = _check(options)
    trained = load(options.run)
    if trained.workload.decode is None:
        raise _no_generator()
    from gmmae.data import sources
    from gmmae.generation import generator as generators

    whole = sources.load(replace(data, augment_with=""))  # new nodules are made of real ones only
    training, validation = (whole.nodules.take(part) for part in whole.split)
    model = generators.Model(trained.config, trained.workload, trained.params, data.window, data.sample_shape)
    generator = generators.fit(model, training, validation)
    lines = [*_keep_prior(generator, options.run), *_unused_units(generator, options.run)]
    strengths = generators.STRENGTHS._replace(bandwidth=options.bandwidth)
    texture = generators.TEXTURE._replace(strength=options.texture)
    generated = generator.sample(
        options.count, options.category, options.seed, size=_size(options), strengths=strengths, texture=texture
    )
    inserted = _write(options, generated, validation, trained.record.run_id, data.window)
    seconds = time.perf_counter() - start
    lines.append(
        f"{options.count} nodules in {seconds:.1f} s; {generated.rejected} too similar to a training nodule were drawn again"
    )
    lines += [str(options.out / name) for name in ("nodules.csv", *SHEETS)]
    print_result(options.out, [*lines, *inserted, f"to train with them: --data.augment-with {options.out}"])
    return 0


def _size(options: GenerateArguments) -> int:
    return 0 if options.size == "auto" else options.size


def _check(options: GenerateArguments) -> DataConfig:
    """Checks the arguments before any data are read. Returns the section `data` of the run."""
    data = _generating_data(run_config(options.run))
    from gmmae.generation.generator import resized
    from gmmae.generation.insertion.hosts import list_scans, read_annotations

    require_free(options.out)
    _require_memory(options.count, resized(data.sample_shape, _size(options)))
    if options.insert_into is not None:
        list_scans(options.insert_into)
        read_annotations(options.insert_into)
    return data


def _require_memory(count: int, shape: tuple[int, ...]) -> None:
    """Checks that the nodules fit into memory, because Linux would end the program without a message.

    Raises:
      InputError: they need more than this machine has.
    """
    needed, available = count * math.prod(shape) * VOXEL_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        size = " × ".join(map(str, shape))
        raise InputError(
            f"--count nodules of --size must fit into memory; got {count} of {size} voxels, which take {needed / 1e9:.0f} of "
            f"{available / 1e9:.0f} GB: make fewer in a call, each with another --seed"
        )


def _keep_prior(generator: "Generator", run: Path) -> list[str]:
    """Writes the prior beside the run. Returns a line if its folder is read-only."""
    from gmmae.generation import prior

    place = run / "prior.npz"
    try:
        prior.save(generator.prior, place)
    except OSError as error:
        return [f"the prior was not kept: {place} cannot be written ({error.strerror or error})"]
    return []


def _unused_units(generator: "Generator", run: Path) -> list[str]:
    if not generator.inactive_units:
        return []
    return [f"{generator.inactive_units} latent units of {run} are unused, so the nodules vary less"]


def _write(
    options: GenerateArguments, generated: "Generated", validation: Nodules, run: str, window: tuple[float, float]
) -> list[str]:
    """Writes all files of the folder. Returns lines about the scans."""
    from gmmae.generation import folder

    with whole_folder(options.out) as place:
        folder.write(generated, place, run, options.seed)
        _contact_sheets(place, validation, generated, window, options.seed)
        return [] if options.insert_into is None else _insert(options, generated, options.insert_into, place)


def _generating_data(config: Config) -> DataConfig:
    """Returns the section `data` of a run that can generate.

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


def _contact_sheets(out: Path, real: Nodules, generated: "Generated", window: tuple[float, float], seed: int) -> None:
    """Draws real held-out nodules and generated ones in random order, on one sheet without and one with labels."""
    from gmmae.generation.judging.figures import contact_sheet
    from gmmae.plotting import canvas

    for name, labelled in SHEETS.items():
        figure, _ = contact_sheet(real.values, generated.nodules.values, window, seed, labelled)
        canvas.save(figure, out / name)


def _insert(options: GenerateArguments, generated: "Generated", scans: Path, out: Path) -> list[str]:
    from gmmae.data.extraction.prepare import say_on_stderr
    from gmmae.generation.insertion.insert import insert

    summary = insert(generated.nodules, scans, out / SCANS, options.seed, options.blending, say_on_stderr)
    return summary._replace(out=options.out / SCANS).lines()
