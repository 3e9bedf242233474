"""Devices and means over them: the only module that calls `pmap` or names its axis.

State and data set are replicated. An epoch's indices and weights are sharded. Gradients and losses are averaged by `pmean`
or `exact_mean`. Since JAX 0.8 `pmap` is `jit(shard_map)` underneath. With `in_axes` and `out_axes` None, replicated arrays have
no leading device axis and are not copied.

`exact_mean` has the same bits however many devices share a batch. Floating-point addition is not associative, so the order is
fixed: consecutive pairs. A compiler that knows the number of passes of a loop unrolls and fuses it, and rounds otherwise. So
the number of passes is an argument of the program. The code that computes a term, and the code that adds two, are then the same
for one device with all terms and for many with one each.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Device, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Int32, PyTree

from gmmae.system.errors import InputError
from gmmae.training.step import B, BatchFunction, T

AXIS = "devices"
Vector = Float[Array, " size"]

DETERMINISTIC: dict[str, str | bool] = {
    "xla_gpu_deterministic_ops": True,
    "xla_disable_hlo_passes": "tree_reduction_rewriter",
    **({"xla_gpu_enable_triton_gemm": False} if jax.__version_info__ >= (0, 12) else {}),
}
"""XLA's options for the same bits from every compilation and run.

With the first option alone, XLA of JAX 0.12 makes each product a Triton kernel, and then allows no Triton. It must ask cuBLAS
for a replacement, and cannot without a GPU. The second option makes products calls of cuBLAS from the beginning: a GPU runs the
program that was compiled without one. Older versions of JAX keep their Triton kernels, whose parameters XLA then fixes.

On a CPU, that pass adds a long sum in blocks where it recognises the sum's zero as a constant. In the program of one device it
recognised other sums than in that of two: the last bits of the U-Net's losses differed.
"""


def accumulate_micro_batches(
    function: BatchFunction[B, T], batch: B, weights: Float[Array, " samples"], micro_batches: int = 1
) -> T:
    """Returns the sum of a function's values at equal parts of a batch, computed one after the other to bound memory."""
    if micro_batches == 1:
        return function(batch, weights)
    parts = jax.tree.map(lambda leaf: leaf.reshape(micro_batches, -1, *leaf.shape[1:]), (batch, weights))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, batch, weights))

    def add(total: T, part: tuple[B, Array]) -> tuple[T, None]:
        return jax.tree.map(jnp.add, total, function(*part)), None

    return lax.scan(add, zero, parts)[0]


def pmean(
    function: BatchFunction[B, T], batch: B, weights: Array, shard_range: Array | None = None, *, micro_batches: int = 1
) -> T:
    """Returns the mean over devices of a function of each device's batch, added in whatever order is fast.

    This and `exact_mean` are for use inside a function given to `Devices.compile`.
    """
    local = accumulate_micro_batches(function, batch, weights, micro_batches)
    if lax.axis_size(AXIS) == 1:
        return local
    # One operation for all arrays: each operation synchronises all devices, which takes longer than its bytes do.
    with jax.named_scope("reduction"):
        vector, unravel = ravel_pytree(local)
        return unravel(lax.pmean(vector, AXIS))


def exact_mean(
    function: BatchFunction[B, T],
    batch: B,
    weights: Float[Array, "shards shard_batch"],
    shard_range: Int[Array, "2"] | None = None,
) -> T:
    """Returns the mean over shards of a function's value at each, with the same bits on any number of devices.

    Values are added as one binary tree over the shards in their order. Each device adds those of its range. Then devices that
    are 1, 2, 4, … apart exchange their sums. `a + b` is `b + a` to the last bit, so all devices end with the same.

    Args:
      function: of one shard.
      batch: all shards, a power of two, on every device; the shards are the leading axis of every array.
      weights: of the same shape.
      shard_range: this device's first shard and number of shards, from `Devices.shard_ranges`.
    """
    assert shard_range is not None, "the exact mean is over shards"
    first, count = shard_range
    shards, devices = len(weights), lax.axis_size(AXIS)

    def shard(number: Int[Array, ""] | int) -> tuple[B, Array]:
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, number, keepdims=False), (batch, weights))

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: function(*shard(0))))
    _, unravel = ravel_pytree(zeros)

    def term(number: Int[Array, ""]) -> Vector:
        return ravel_pytree(function(*shard(number)))[0]

    def across(total: Vector) -> Vector:
        for level in range(devices.bit_length() - 1):
            total += lax.ppermute(total, AXIS, [(i, i ^ 1 << level) for i in range(devices)])
        return total

    total = tree_sum(term, first, count, shards)
    if devices > 1:
        total = repeat(across, total, jnp.minimum(count, 1))  # once, but the compiler does not know
    return unravel(total / shards)


def tree_sum(term: Callable[[Int[Array, ""]], Vector], first: Int[Array, ""], count: Int[Array, ""], most: int) -> Vector:
    """Returns `term(first) + … + term(first + count - 1)`, added in consecutive pairs, then in pairs of those sums, and so on.

    A binary counter: after term i every level whose bit in i is one is complete and is carried on. It keeps
    `log2(most) + 1` vectors.

    Args:
      term: of an index.
      first: the first index.
      count: how many, a power of two. Both must be unknown when the program is compiled.
      most: the largest `count`.
    """
    like = jax.eval_shape(term, first)
    subtotals = jnp.zeros((most.bit_length(), *like.shape), like.dtype)

    def push(carry: tuple[Array, Vector, Array]) -> tuple[Array, Vector, Array]:
        i, _, subtotals = carry

        def complete(state: tuple[Array, Vector]) -> Array:
            return (i >> state[0]) & 1 == 1

        def merge(state: tuple[Array, Vector]) -> tuple[Array, Vector]:
            level, total = state
            return level + 1, lax.dynamic_index_in_dim(subtotals, level, keepdims=False) + total

        level, total = lax.while_loop(complete, merge, (jnp.int32(0), term(first + i)))
        return i + 1, total, lax.dynamic_update_index_in_dim(subtotals, total, level, 0)

    return lax.while_loop(lambda carry: carry[0] < count, push, (jnp.int32(0), subtotals[0], subtotals))[1]


def repeat(function: Callable[[Vector], Vector], value: Vector, times: Int[Array, ""]) -> Vector:
    """Applies a function `times` times.

    Where the number is unknown to the compiler, nothing is fused into the function or out of it.
    """
    return lax.while_loop(
        lambda carry: carry[0] < times, lambda carry: (carry[0] + 1, function(carry[1])), (jnp.int32(0), value)
    )[1]


@dataclass(frozen=True)
class Devices:
    """The devices of a run, in order.

    Attributes:
      devices: in order.
      absent: whether programs are only compiled for devices that are not here (`jax.experimental.topologies`). Arrays are then
        replaced by their shapes and shardings.
      options: further options of XLA, by name.
    """

    devices: tuple[Device, ...]  # pyright: ignore[reportInvalidTypeForm]
    absent: bool = False
    options: tuple[tuple[str, str | bool], ...] = ()

    @property
    def count(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @property
    def kind(self) -> str:
        """The model of the devices, as JAX calls it."""
        return self.devices[0].device_kind

    @property
    def platform(self) -> str:
        """The platform of the devices: cpu, gpu or tpu."""
        return self.devices[0].platform

    @property
    def triton(self) -> bool:
        """Whether XLA has Triton for all of them. Of NVIDIA's GPUs that is the A100's generation and later ones."""
        capabilities = [str(getattr(device, "compute_capability", "")) for device in self.devices]  # of AMD's GPUs a name
        return all(re.fullmatch(r"\d+\.\d+", each) and float(each) >= 8 for each in capabilities)

    @property
    def processes(self) -> int:
        """The number of processes that own the devices."""
        return len({device.process_index for device in self.devices})

    @property
    def oversubscribed(self) -> bool:
        """Whether devices share hardware, as several CPU devices of one process do."""
        return self.platform == "cpu" and self.count > self.processes

    @property
    def own(self) -> tuple[int, ...]:
        """The positions of this process's devices."""
        here = jax.process_index()
        return tuple(i for i, device in enumerate(self.devices) if self.absent or device.process_index == here)

    def replicate(self, tree: PyTree) -> PyTree:
        """Copies every array to every device. Where several processes own the devices, each one gives the same arrays."""
        return self._place(tree, PartitionSpec())

    def shard(self, tree: PyTree) -> PyTree:
        """Divides arrays along their leading axis, one entry for each device. Every process gives them whole."""
        return self._place(tree, PartitionSpec(AXIS))

    def shard_own(self, tree: PyTree) -> PyTree:
        """Divides arrays along their leading axis, one entry for each device of this process, in the order of `own`."""
        if self.absent or self.processes == 1:
            return self.shard(tree)
        sharding = self._sharding(PartitionSpec(AXIS))

        def place(leaf: np.ndarray) -> jax.Array:
            return jax.make_array_from_process_local_data(sharding, leaf, (self.count, *leaf.shape[1:]))

        return jax.tree.map(place, tree)

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(Mesh(np.array(self.devices), (AXIS,)), spec)

    def _place(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        sharding = self._sharding(spec)
        if self.absent:
            shapes = jax.eval_shape(lambda arrays: arrays, tree)
            return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)
        if sharding.is_fully_addressable:
            return jax.device_put(tree, sharding)

        def place(leaf: ArrayLike) -> jax.Array:
            array = np.asarray(leaf)
            return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

        return jax.tree.map(place, tree)  # device_put would compare the arrays of all processes, over the network

    def shard_ranges(self, shards: int) -> Int32[np.ndarray, "devices 2"]:
        """Returns the first shard and the number of shards of each device, for `exact_mean`."""
        share = shards // self.count
        return np.array([(i * share, share) for i in range(self.count)], np.int32)

    def compile(
        self,
        function: Callable[..., PyTree],
        *args: PyTree,
        sharded: int,
        donate: tuple[int, ...] = (),
        deterministic: bool = False,
    ) -> jax.stages.Compiled:
        """Compiles a function for all devices, ahead of time. Its results must be equal on all of them.

        Args:
          function: of one device's arguments. It averages all that differs between devices with `pmean` or `exact_mean`.
          args: example arguments, as `replicate` and `shard` return them.
          sharded: how many arguments, the last ones, are divided over the devices; the others are replicated.
          donate: positions of arguments whose memory the results may take over.
          deterministic: asks for the same bits from every compilation and run. Otherwise a GPU may choose between algorithms.

        Returns:
          The compiled function of the same arguments. It never compiles again, and refuses other shapes.
        """
        in_axes = (None,) * (len(args) - sharded) + (0,) * sharded
        mapped = jax.pmap(
            function, axis_name=AXIS, in_axes=in_axes, out_axes=None, devices=list(self.devices), donate_argnums=donate
        )
        options = {**(DETERMINISTIC if deterministic else {}), **dict(self.options)}
        return mapped.lower(*args).compile(compiler_options=options or None)


def choose(count: int | None) -> Devices:
    """Returns the first `count` devices of all processes, process by process, or all of them for None.

    Raises:
      InputError: there are fewer, or a process would have none or only a part of its own.
    """
    devices = jax.devices()
    if count is not None and count > len(devices):
        way_out = f"set JAX_NUM_CPU_DEVICES={count} for virtual devices" if devices[0].platform == "cpu" else "use fewer"
        raise InputError(
            f"parallel.devices must be at most the number of devices that JAX sees, {len(devices)} ({devices[0].device_kind}); "
            f"got {count}: {way_out}"
        )
    if jax.process_count() > 1 and count not in (None, len(devices)):
        raise InputError(
            f"parallel.devices must be all or the {len(devices)} devices of the {jax.process_count()} processes; got {count}: "
            "start fewer processes, or let each of them see fewer devices"
        )
    return Devices(tuple(devices[:count]))
