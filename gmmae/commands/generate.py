"""`gmmae generate RUN --count N --out FOLDER`: new nodules from a trained model."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gmmae.commands.api import load
from gmmae.commands.arguments import MISSING, Run, parse


@dataclass(frozen=True)
class GenerateArguments:
    """Make new nodules with a trained model: cubes with masks, and a CSV that says how each was made."""

    run: Run  # the work directory of a run whose model has a decoder in cells (configs/nodules_generate.toml)
    out: Path = MISSING  # the folder to write; new or empty
    count: int = 100  # nodules to make
    category: str = ""  # of all of them; empty: as in the training set
    seed: int = 0  # another seed, other nodules
    size: int = 0  # voxels along each axis of a cube; 0: as many as the model was trained on
    bandwidth: float = 0.4  # noise of the prior, in standard deviations within a category
    texture: float = 1.0  # strength of the texture that the mixtures leave out; 0: none


def command(arguments: Sequence[str], prog: str) -> int:
    """Generates, writes, draws, and says where everything is. Returns the exit code."""
    asked = parse(GenerateArguments(MISSING), arguments, prog)
    _check(asked)
    start = time.perf_counter()
    trained = load(asked.run)
    from gmmae.data import sources
    from gmmae.figures.generated import contact_sheets
    from gmmae.generation import folder
    from gmmae.generation.generator import STRENGTHS, TEXTURE

    folder.require_empty(asked.out)
    config = data_of(trained)
    nodules, (train, validation) = sources.load_whole(config)
    generator = fitted(trained, nodules.take(train), nodules.take(validation))
    if generator.dead:
        print(f"{generator.dead} latent units of {asked.run} carry nothing: what they could say is missing from all nodules")
    generated = generator.sample(
        asked.count,
        asked.category or None,
        asked.seed,
        size=asked.size,
        strengths=STRENGTHS._replace(bandwidth=asked.bandwidth),
        texture=TEXTURE._replace(strength=asked.texture),
    )
    folder.write(generated, asked.out, trained.record.run_id, asked.seed)
    sheets = contact_sheets(asked.out, nodules.values[validation], generated.nodules.values, config.window, asked.seed)
    seconds = time.perf_counter() - start
    print(
        f"{asked.count} nodules in {seconds:.1f} s, {generated.rejected} more thrown away as too near to a training nodule: {asked.out}"
    )
    for path in sheets:
        print(path)
    print(f"--data.augment-with {asked.out} adds them to a training set")
    return 0
