"""The one file of `gmmae export`: a model that needs JAX alone.

It is a ZIP archive of `NAME.stablehlo` for each function (`jax.export`), `params.npz`, `meta.json`, the loader `load.py`, and
the run's `config.toml` and `record.json`, from which `gmmae.load` builds the model when JAX can no longer read the programs,
after six months. A program maps over single samples, so that their number stays open while all other shapes are known.
"""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.export import Exported

from gmmae.config.schema import LOSS, Config, changed, flatten
from gmmae.config.toml import to_toml
from gmmae.export import loader
from gmmae.system.errors import InputError
from gmmae.system.files import output_file
from gmmae.system.provenance import versions
from gmmae.training import fingerprint, preparation
from gmmae.training.checkpoint import named
from gmmae.training.records import to_json
from gmmae.training.trained import restore, run_config
from gmmae.workloads.interface import Params, Samples
from gmmae.workloads.sources import spread

LOADER = "load.py"
PLATFORMS = ("cpu", "cuda")


def export(config: Config, run: Path, out: Path) -> None:
    """Writes the functions, best parameters and loader of the run in a folder to one file, whole or not at all."""
    # The kernel would tie the file to one version of Triton.
    unfused = changed(config, model__fused=False) if "model.fused" in dict(flatten(config)) else config
    model, params, settings = restore(unfused, run), io.BytesIO(), to_toml(config)
    workload = model.workload
    functions = {"losses": lambda params, samples: workload.losses(params, samples, None), "metrics": workload.metrics}
    if workload.describe is not None:
        functions["describe"] = workload.describe
    with preparation.precision_context(config):
        data = workload.load()
        samples = preparation.cast(config, spread(data.validation, 1))
        programs = {
            name: program
            for name, function in functions.items()
            if (program := _exported(function, model.params, samples)).out_avals  # a workload may have no metrics
        }
    if config == run_config(run):  # otherwise the user may have other data in the place of those that are gone
        fingerprint.require_same_data(config, data, run)
    np.savez(params, allow_pickle=False, **named(jax.tree.map(_storable, model.params)))
    meta = {
        "run_id": model.record.run_id,
        "epoch": model.record.best_epoch,
        "workload": config.workload,
        "dtype": config.dtype,
        "platforms": PLATFORMS,
        "versions": versions(),
        "functions": {name: _shapes(program) for name, program in programs.items()},
        "config": settings,
    }
    parts = {
        LOADER: Path(loader.__file__).read_text(encoding="utf-8"),
        "meta.json": json.dumps(meta, indent=1),
        "config.toml": settings,
        "record.json": to_json(model.record),
        "params.npz": params.getvalue(),
        **{f"{name}.stablehlo": bytes(program.serialize()) for name, program in programs.items()},
    }
    with output_file(out) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    fingerprint.warn_of_change(model.evaluate(data.validation)[LOSS].mean(), model.record.best_val_loss)


def _exported(function: Callable[..., Any], params: Params, samples: Samples) -> Exported:
    own_leaves, structure = jax.tree.flatten(params)

    def of_samples(leaves: list[jax.Array], samples: Samples) -> object:
        params = structure.unflatten([leaf.astype(own.dtype) for leaf, own in zip(leaves, own_leaves, strict=True)])

        def of_sample(sample: Samples) -> object:
            result = function(params, jax.tree.map(lambda leaf: leaf[None], sample))
            return jax.tree.map(lambda leaf: leaf[0], result)

        return jax.lax.map(of_sample, samples)

    (count,) = jax.export.symbolic_shape("samples")
    shapes = jax.eval_shape(lambda arrays: arrays, samples)  # with the types that JAX computes in: int32 for int64
    open_ended = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), shapes)
    exported = jax.export.export(jax.jit(of_samples), platforms=PLATFORMS)([*map(_storable, own_leaves)], open_ended)
    try:
        exported.serialize()
    except ValueError as error:  # a class that is unknown to the program that loads the file
        raise InputError(
            "samples and results must be arrays in dictionaries, lists or tuples to be exported; got "
            f"{' '.join(str(error).split())}"
        ) from error
    return exported


def _storable(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.float32) if leaf.dtype.kind == "V" else leaf  # NumPy's files do not know bfloat16


def _shapes(program: Exported) -> dict[str, Any]:
    (_, samples), _ = program.in_tree.unflatten(program.in_avals)
    described = {"samples": samples, "gives": program.out_tree.unflatten(program.out_avals)}
    return jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}".replace("'", ""), described)
