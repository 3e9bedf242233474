"""What must hold of the programs that are compiled for GPUs, and what a program breaks of it."""

import math
import re
from collections import Counter
from typing import NamedTuple

import jax

from benchmarks import hlo
from benchmarks.device_programs import meetings_text


class Bound(NamedTuple):
    """Bounds of an epoch's program.

    Attributes:
      launches: those of a step without collective ones.
      temporary_mb: MB of temporary memory.
      commands: what the host issues in a step. Loops of a length that only the running program knows count as one pass.
    """

    launches: int
    temporary_mb: float
    commands: int = 1000


JAX_0_10 = {
    ("float32", 1, 1): Bound(82, 49.0, 1),
    ("tf32", 1, 1): Bound(82, 49.0, 1),
    ("micro", 1, 1): Bound(174, 30.3, 5),
    ("exact", 1, 1): Bound(76, 17.6, 14),
    ("float32", 8, 1): Bound(66, 13.2, 6),
    ("tf32", 8, 1): Bound(66, 13.2, 6),
    ("micro", 8, 1): Bound(148, 8.6, 10),
    ("exact", 8, 1): Bound(83, 17.6, 18),
    ("float32", 8, 2): Bound(66, 13.2, 6),
    ("exact", 8, 2): Bound(83, 17.6, 18),
}
"""`paper.toml`, batch 32, by mode, GPUs and hosts, compiled by JAX 0.10.2 on Python 3.11.

Convolutions as products take more launches and memory than cuDNN's, with which there were 45 and 14.9 MB, and half the time.
The learning rate of each step and the seed are arguments. With constants there were two launches more, and 0.8 MB less on one
GPU, where the live arrays are the same and packed otherwise.

A step gathers its samples before it divides them into micro-batches or shards. That takes 0.4 MB for the batch of 32.

A step on one GPU is one CUDA graph. NCCL's all-reduce is in none and divides the step in two.
"""

JAX_0_12 = {
    ("float32", 1, 1): Bound(80, 49.0, 1),
    ("tf32", 1, 1): Bound(80, 49.0, 1),
    ("micro", 1, 1): Bound(170, 34.1, 7),
    ("exact", 1, 1): Bound(70, 20.0, 13),
    ("float32", 8, 1): Bound(64, 14.3, 1),
    ("tf32", 8, 1): Bound(64, 14.3, 1),
    ("micro", 8, 1): Bound(145, 8.7, 6),
    ("exact", 8, 1): Bound(77, 20.0, 19),
    ("float32", 8, 2): Bound(65, 13.2, 6),
    ("exact", 8, 2): Bound(77, 20.0, 19),
}
"""The same, compiled by JAX 0.12.0.1 on Python 3.12, which fuses more: 1 to 6 launches fewer.

In the exact reduction each product is a call of cuBLAS (`gmmae.training.parallel.DETERMINISTIC`) with 4.2 MB of working memory:
2.4 MB more in all.

On one host the all-reduce is a Triton kernel of XLA's own, inside the step's CUDA graph, so the host launches one graph a step.
Across two hosts it is NCCL's. The arrays of the fullest moment take 1.2 MB more on one host since the learning rate is an
argument.

Micro-batches on one GPU take 4 MB more than in JAX 0.10, because JAX 0.12 packs them otherwise.
"""

BOUNDS = JAX_0_12 if jax.__version_info__ >= (0, 12) else JAX_0_10
"""Those of the installed version."""

NORMS = {"lamb": 51, "lars": 53}
"""Launches of a step that an optimiser takes beyond Adam's, on 8 GPUs in float32, compiled by either version of JAX.

Both optimisers divide the norm of each of ten arrays by that of its step. A norm of a large array is two launches. The new
parameters wait for both norms, so they are no longer computed together with the moments. The function `optax.safe_norm`
computes each norm twice, for a derivative of the norm that training does not take. With each norm computed once,
JAX 0.10 has 29 launches fewer for lamb and 28 fewer for lars. The other optimisers have no norms, and need no more than Adam.
"""

PLAIN = {
    ("t4", "float32"): Bound(85, 92.4, 1 if jax.__version_info__ >= (0, 12) else 71),
    ("a100", "float32"): Bound(91, 92.4, 1),
    ("h100", "float32"): Bound(95, 92.4, 1),
    ("h100", "tf32"): Bound(95, 92.4, 1),
}
"""`paper.toml` on one GPU without the loss's kernel, by GPU and mode. JAX 0.10 has 1 or 2 launches fewer on A100 and H100."""

GROWN = Bound(77, 52.1) if jax.__version_info__ >= (0, 12) else Bound(81, 57.2)
"""A stage of `growing` with a batch of 256 on 8 GPUs in float32.

A device then has 32 samples, as one GPU has at batch 32, and the forms of the convolutions are the same there.
"""

IN_TF32 = r"/encoder/|/heads"
"""Scopes of the products in TF32: convolutions and dense layers. The density's terms cancel."""


class Asked(NamedTuple):
    """What a program was compiled for."""

    mode: str
    devices: int
    parameters: int
    bound: Bound


def faults(epoch, asked):
    """Each thing that an epoch's program breaks, in a line."""
    return [*_meetings(epoch, asked), *_host(epoch, asked), *_bounds(epoch, asked.bound), *_arithmetic(epoch, asked.mode)]


def validation_faults(validation, asked):
    """Likewise of a validation's, whose size has no bound."""
    return [*_host(validation, asked), *_arithmetic(validation, asked.mode)]


def _meetings(epoch, asked):
    """The gradient and the loss travel together, once: over the tree of the exact reduction once a level."""
    size, levels = 4 * (asked.parameters + 1), int(math.log2(asked.devices))
    what, times = ("collective-permute", levels) if asked.mode == "exact" else ("all-reduce", min(1, levels))
    if Counter(epoch.meetings) != Counter({(what, size): times} if times else {}):
        yield f"devices must meet in {meetings_text([(what, size)] * times)}; got {meetings_text(epoch.meetings)}"


def _host(reading, asked):
    if reading.host:
        yield f"nothing may go to or come from the host in a step; got {', '.join(reading.host)}"
    if reading.open_loops and asked.mode != "exact":
        yield f"no loop in a step may have a length that the host must ask for; got {reading.open_loops}"
    if reading.kernels[hlo.OTHER]:
        yield f"every launch must be of a known kind; got {reading.kernels[hlo.OTHER]} of others"


def _bounds(epoch, bound):
    launches, temporary_mb = sum(epoch.kernels.values()), epoch.temporary / 1e6
    if launches > bound.launches:
        yield f"a step may have {bound.launches} launches; got {launches}"
    if epoch.commands is not None and sum(epoch.commands.values()) > bound.commands:
        yield f"the host's commands in a step may be {bound.commands}; got {dict(epoch.commands)}"
    if temporary_mb > bound.temporary_mb:
        yield f"temporary memory may be {bound.temporary_mb} MB; got {temporary_mb:.1f}"


def _arithmetic(reading, mode):
    rounded = {product.scope for product in reading.products if not product.full}
    wrong = {scope for scope in rounded if mode != "tf32" or not re.search(IN_TF32, scope)}
    if wrong:
        yield f"only convolutions and dense layers may be in TF32, and only where it is asked for; got {sorted(wrong)}"
    exact = {product.scope for product in reading.products if product.full and re.search(IN_TF32, product.scope)}
    if mode == "tf32" and exact:
        yield f"where TF32 is asked for, all convolutions and dense layers must be in it; got {sorted(exact)} in float32"
    if mode == "exact" and reading.unordered:
        yield f"the exact reduction must add in a fixed order; got {reading.unordered} launches that do not"
