"""The contract of a workload: one loss and metric a sample, parameters that can be trained, and samples that are independent.

The last part takes calls, so it is checked once for a workload's file, settings and version of JAX, which an empty file in
JAX's folder of compiled programs remembers.
"""

import hashlib
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from gmmae.config.schema import LOSS
from gmmae.system.errors import InputError
from gmmae.workloads import registry
from gmmae.workloads.interface import Params, PerSample, Samples, Workload, WorkloadError
from gmmae.workloads.sources import count, form, one_sample, spread

TOLERANCES = {r"f16\[|f8_|Precision\.(DEFAULT|HIGH)\b": 0.05, r"f32\[": 1e-4, "": 1e-10}
"""Rounding, in shares of the largest value, by the first pattern in a program in JAX's notation."""

SAMPLES = 32
"""Rules such as the hardest 16 of a batch do not show with fewer."""

TRIES = 3
"""Sets of parameters. A dependence shows with each, a threshold that rounding has crossed with one."""

TAKEN = (LOSS, "name", "split", "group", "val_loss", "epoch")
"""Columns of `gmmae evaluate`, and of a sweep's runs behind `best_`."""

UNDEFINED = ", undefined"
"""Ends the name of the share of samples without a value."""


def losses(workload: Workload, params: Params, samples: Samples, keys: Array | None) -> Array:
    """One loss for each sample, of 32 bits or more: means of 16 bits would be rounded, and a target crossed by that."""
    of_samples = workload.losses(params, samples, keys)
    _require_one_per_sample("losses", samples, of_samples)
    return of_samples.astype(jnp.promote_types(of_samples.dtype, jnp.float32))


def values(workload: Workload, params: Params, samples: Samples, keys: Array | None = None) -> PerSample:
    """Loss and metrics by name, one value for each sample; with keys, as in training, only the loss."""
    of_samples = losses(workload, params, samples, keys)
    metrics = workload.metrics(params, samples) if keys is None else {}
    if not isinstance(metrics, Mapping):
        raise WorkloadError(f"metrics of a workload must return arrays by name; got {type(metrics).__name__}")
    if len({re.sub(r"[^\w./-]", "_", name) for name in metrics}) < len(metrics):
        names = ", ".join(map(repr, metrics))
        raise WorkloadError(
            f"metrics of a workload must differ in letters, digits or -./, which TensorBoard keeps; got {names}"
        )
    for name, metric in metrics.items():
        _require_one_per_sample(f"metrics, {name!r}", samples, metric, of_samples)
        if name in TAKEN or not name.isprintable():
            taken = ", ".join(TAKEN)
            raise WorkloadError(
                f"metrics of a workload must have names of one line other than {taken}; got {name!r}: rename it"
            )
    return {LOSS: of_samples, **{name: jnp.asarray(metric, of_samples.dtype) for name, metric in metrics.items()}}


def summable_values(workload: Workload, may_be_undefined: Sequence[str], params: Params, samples: Samples) -> PerSample:
    """`values` with 0 for an undefined metric, and a second entry that is 1 where it is undefined."""
    summable = dict(values(workload, params, samples))
    if unknown := [name for name in may_be_undefined if name not in summable]:
        raise WorkloadError(f"may_be_undefined must name metrics of the workload, {', '.join(summable)}; got {unknown[0]!r}")
    for name in may_be_undefined:
        undefined = jnp.isnan(summable[name])
        summable[name + UNDEFINED] = undefined.astype(summable[name].dtype)
        summable[name] = jnp.where(undefined, 0, summable[name])
    return summable


def _require_one_per_sample(name: str, samples: Samples, values: Array, *losses: Array) -> None:
    shape, expected = np.shape(values), (count(samples),)
    if shape != expected or not jnp.issubdtype(jnp.result_type(values, *losses), jnp.floating):
        dtype = getattr(values, "dtype", type(values).__name__)
        raise WorkloadError(
            f"{name} of a workload must be one floating-point number a sample, of shape {expected} here; got {dtype} of shape "
            f"{shape}"
        )


def require_parameters(params: Params) -> None:
    """Refuses parameters that cannot be trained or saved."""
    paths = jax.tree_util.tree_leaves_with_path(params)
    leaves = [(jax.tree_util.keystr(path, simple=True, separator="."), jnp.asarray(leaf)) for path, leaf in paths]
    names = [name for name, _ in leaves]
    wrong = [
        f"{form(leaf)} for {name}"
        for name, leaf in leaves
        if not (jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size and names.count(name) == 1)
    ]
    if wrong or not leaves:
        raise WorkloadError(
            "init of a workload must return real floating-point arrays with elements, each with a name of its own (the keys "
            f"joined by points); got {', '.join(wrong) or 'no parameters'}: rename them, or keep other values elsewhere"
        )


def require_independence(
    programs: Iterable[jax.stages.Wrapped],
    params: Params,
    data: tuple[Samples, Samples],
    cast: Callable[[Samples], Samples],
    name: str,
    key: Hashable,
    most: int = SAMPLES,
) -> None:
    """Refuses a workload whose values of a sample depend on other samples, their order or number, or on `load`.

    The jitted `programs` are `(params, samples, keys) -> {name: one value a sample}`: the run's, and that of a workload whose
    `load` is not called, as in `gmmae.load`. All that the values follow from is in `name` and `key`. They compute
    `most` samples at once.
    """
    forms = [form(one_sample(samples)) for samples in data]
    seen = registry.file_hash(name), key, most, forms, jax.__version__
    folder = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    # The 4 is the version of this check.
    marker = os.path.join(folder or os.devnull, f"contract-4-{hashlib.sha256(repr(seen).encode()).hexdigest()}")
    if os.path.exists(marker):
        return
    train, validation = (cast(spread(samples, most)) for samples in data)
    program, anew = programs
    batches = [(train, jax.random.split(jax.random.key(0), count(train))), (validation, None)]
    try:
        faults = [_dependence(program, anew, params, batch) for batch in batches]
    except Exception as error:  # of the user's file
        if isinstance(error, InputError) or (forms[0] == forms[1] and "[" not in forms[0]):
            raise
        raise WorkloadError(
            f"losses and metrics must compute the samples for training and for validation; got {forms[0]}, and {forms[1]}, "
            f"where {name} raised {type(error).__name__}: {' '.join(str(error).split())[:150]}"
        ) from error
    if any(faults):
        raise WorkloadError(
            "values of a sample must not follow other samples, their order or their number, nor what load sets; got "
            f"{faults[0] or faults[1]} in {name}: normalise within each sample, draw random numbers from its key, and return "
            "load's constants in each sample, or compute them in build"
        )
    with suppress(OSError):  # the next start checks again
        Path(marker).touch()


def _dependence(
    program: jax.stages.Wrapped, anew: jax.stages.Wrapped, params: Params, batch: tuple[Samples, Array | None]
) -> str:
    """In words, a value of a sample that is another one without the others and before `load`, or nothing."""
    normal, text = np.random.default_rng(0).normal, ""
    notation = str(program.trace(params, *batch).jaxpr)
    tolerance = next(value for pattern, value in TOLERANCES.items() if re.search(pattern, notation))
    for _ in range(TRIES):
        # Zeros would hide what they are multiplied by.
        moved = jax.tree.map(
            lambda leaf: leaf + np.asarray(normal(0, abs(leaf).mean() / 10 or 0.1, leaf.shape), leaf.dtype), params
        )
        results = [program(moved, *batch)]
        try:
            for i in range(count(batch[0])):
                results.append(anew(moved, *jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], batch)))
        except Exception as error:  # of the user's file, which has just computed several samples
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
            raise WorkloadError(
                f"losses and metrics must be computed for one sample alone, too, and without load; got {words}"
            ) from error
        together, *alone = (np.array([*result.values()], np.float64) for result in results)
        pair = np.array([together, np.hstack(alone)])
        limit = tolerance * np.abs(pair).max((0, 2), keepdims=True, initial=0, where=np.isfinite(pair))[0]
        differing = np.argwhere(~np.isclose(*pair, rtol=0, atol=limit, equal_nan=True))
        if not differing.size:
            return ""
        row, i = differing[0]
        text = f"{[*results[0]][row]} {pair[0, row, i]:.6g} with others after load and {pair[1, row, i]:.6g} alone without load"
    return text
