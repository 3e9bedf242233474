"""`gmmae export`: a trained model as one file that needs JAX alone.

The file is a ZIP archive: `NAME.stablehlo` for each function (`jax.export`: StableHLO, for CPUs and NVIDIA GPUs), `params.npz`,
`meta.json`, and `load.py`, which reads them (`gmmae.cli.export_loader`).

Samples are mapped over one by one: so their number stays open in the program, while inside of it all shapes are known, and
whatever a workload decides by a shape is decided as for one sample.
"""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmmae.cli.arguments import MISSING, Run, parse_on_run
from gmmae.config.rules import Options
from gmmae.config.schema import changed, flatten
from gmmae.config.toml import to_toml
from gmmae.system.compilation_cache import keep
from gmmae.system.errors import InputError
from gmmae.system.files import output_file, tell
from gmmae.system.provenance import versions

if TYPE_CHECKING:
    from jax.export import Exported

    from gmmae.training.trained import Trained

PLATFORMS = ("cpu", "cuda")


@dataclass(frozen=True)
class Arguments(Options):
    """A run's best parameters and functions as one file that is loaded without gmmae, by JAX alone."""

    run: Run = MISSING  # the work directory of a run that you trust: the Python that it names is executed; it comes first
    out: Path = MISSING  # the file to write, a ZIP archive; what is there is replaced


def command(arguments: Sequence[str], prog: str) -> int:
    """Exports, and says how to load it. Returns the exit code."""
    asked, config = parse_on_run(Arguments, arguments, prog)
    keep(config.compilation_cache)
    from gmmae.training.trained import restore

    if "model.fused" in dict(flatten(config)):  # the kernel would tie the file to one version of Triton
        config = changed(config, model__fused=False)
    write(restore(config, asked.run), asked.out)
    lines = [
        f"{asked.out}  {asked.out.stat().st_size / 1e6:.1f} MB, for JAX on {' and '.join(PLATFORMS)}; to load it:",
        f"    unzip -p {asked.out} load.py > load.py",
        f"    python -c \"import load; print(load.Model('{asked.out}').about)\"",
    ]
    tell(asked.out, lines)
    return 0


def write(model: "Trained", path: Path) -> None:
    """Writes a model's functions, parameters and loader into one file, whole or not at all.

    Raises:
      InputError: the file cannot be written, or the workload's functions cannot be exported.
    """
    import jax
    import numpy as np

    from gmmae.cli import export_loader

    params, programs = io.BytesIO(), _programs(model)
    np.savez(params, allow_pickle=False, **{f"p{i}": leaf for i, leaf in enumerate(jax.tree.leaves(model.params))})
    meta = {
        "run_id": model.record.run_id,
        "epoch": model.record.best_epoch,
        "workload": model.config.workload,
        "dtype": model.config.dtype,
        "platforms": PLATFORMS,
        "versions": versions(),
        "functions": {name: _shapes(program) for name, program in programs.items()},
        "config": to_toml(model.config),
    }
    parts = {
        "load.py": Path(export_loader.__file__).read_text(encoding="utf-8"),
        "meta.json": json.dumps(meta, indent=1),
        "params.npz": params.getvalue(),
        **{f"{name}.stablehlo": bytes(program.serialize()) for name, program in programs.items()},
    }
    with output_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def _programs(model: "Trained") -> "dict[str, Exported]":
    import jax

    from gmmae.training import compilation

    workload = model.workload
    functions: dict[str, Callable[..., Any]] = {"losses": lambda params, samples: workload.losses(params, samples, None)}
    functions["metrics"] = workload.metrics
    if workload.describe is not None:
        functions["describe"] = workload.describe
    with compilation.precision_context(model.config):
        samples = compilation.cast(model.config, jax.tree.map(lambda leaf: leaf[:1], workload.load().validation))
        found = {name: _exported(function, model.params, samples) for name, function in functions.items()}
    return {name: program for name, program in found.items() if program.out_avals}


def _exported(function: Callable[..., Any], params: Any, samples: Any) -> "Exported":
    import jax

    structure = jax.tree.structure(params)

    def of_all(leaves: list[Any], samples: Any) -> Any:
        params = jax.tree.unflatten(structure, leaves)

        def of_one(sample: Any) -> Any:
            found = function(params, jax.tree.map(lambda leaf: leaf[None], sample))
            return jax.tree.map(lambda leaf: leaf[0], found)

        return jax.lax.map(of_one, samples)

    (count,) = jax.export.symbolic_shape("samples")
    shapes = jax.eval_shape(lambda arrays: arrays, samples)  # with the types that JAX computes in: int32 for int64
    open_ended = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), shapes)
    fixed = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(params)]
    exported = jax.export.export(jax.jit(of_all), platforms=PLATFORMS)(fixed, open_ended)
    try:
        exported.serialize()
    except ValueError as error:  # of a class that is not known where the file is loaded
        raise InputError(
            "samples, and what a workload says of them, must be arrays in dictionaries, lists or tuples to be exported; got "
            f"{' '.join(str(error).split())}"
        ) from error
    return exported


def _shapes(program: "Exported") -> dict[str, Any]:
    import jax

    (_, samples), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    of = {"samples": samples, "gives": jax.tree.unflatten(program.out_tree, program.out_avals)}
    return jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}".replace("'", ""), of)
