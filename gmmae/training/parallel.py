"""The devices of a run, and `pmap`, which only this module calls.

With `in_axes` and `out_axes` None, replicated arrays have no leading device axis and are not copied.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jax import Device
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import PyTree

from gmmae.system.errors import InputError

AXIS = "devices"
"""The axis of `pmap`, over which `lax.pmean` takes means."""

DETERMINISTIC: dict[str, str | bool] = {
    "xla_gpu_deterministic_ops": True,
    "xla_disable_hlo_passes": "tree_reduction_rewriter",
    **({"xla_gpu_enable_triton_gemm": False} if jax.__version_info__ >= (0, 12) else {}),
}
"""XLA's options for the same bits from every compilation and run.

With the first option alone, XLA of JAX 0.12 makes each product a Triton kernel, then allows no Triton, and cannot ask cuBLAS
for a replacement without a GPU; the last option makes products calls of cuBLAS from the beginning.

On a CPU, the disabled pass adds a long sum in blocks where it recognises its zero as a constant, in the program of one device
elsewhere than in that of two.
"""


@dataclass(frozen=True)
class Devices:
    """The devices of a run, in order.

    Attributes:
      absent: whether programs are only compiled for them (`jax.experimental.topologies`), with shapes in place of arrays.
      options: further options of XLA.
    """

    devices: tuple[Device, ...]  # pyright: ignore[reportInvalidTypeForm]
    absent: bool = False
    options: tuple[tuple[str, str | bool], ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.devices)

    @property
    def kind(self) -> str:
        """The model, as JAX calls it."""
        return self.devices[0].device_kind

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu."""
        return self.devices[0].platform

    @property
    def memory_bytes(self) -> float:
        """Memory of one of them, infinite where JAX does not know it, as on a CPU."""
        return (self.devices[0].memory_stats() or {}).get("bytes_limit", math.inf)

    @property
    def triton(self) -> bool:
        """Whether XLA has Triton for them, as for NVIDIA's GPUs since the A100."""
        capabilities = [str(getattr(device, "compute_capability", "")) for device in self.devices]  # of AMD's GPUs a name
        return all(re.fullmatch(r"\d+\.\d+", each) and float(each) >= 8 for each in capabilities)

    @property
    def processes(self) -> int:
        """How many processes own them."""
        return len({device.process_index for device in self.devices})

    @property
    def oversubscribed(self) -> bool:
        """Whether they share hardware, as several CPU devices of one process do."""
        return self.platform == "cpu" and self.count > self.processes

    @property
    def own(self) -> tuple[int, ...]:
        """The positions of this process's devices."""
        return tuple(i for i, one in enumerate(self.devices) if self.absent or one.process_index == jax.process_index())

    def replicate(self, tree: PyTree) -> PyTree:
        """Copies every array, the same in all processes, to every device."""
        return self._place(tree, PartitionSpec())

    def shard(self, tree: PyTree, own: bool = False) -> PyTree:
        """Divides arrays, whole in every process, along their leading axis, one entry for each device.

        `own` arrays have the entries of this process's devices only, in the order of `own`.
        """
        return self._place(tree, PartitionSpec(AXIS), own)

    def _place(self, tree: PyTree, spec: PartitionSpec, own: bool = False) -> PyTree:
        sharding = NamedSharding(Mesh(np.array(self.devices), (AXIS,)), spec)
        if self.absent:
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
                jax.eval_shape(lambda arrays: arrays, tree),
            )
        if sharding.is_fully_addressable:
            return jax.device_put(tree, sharding)

        def place(leaf: ArrayLike) -> jax.Array:
            array = np.asarray(leaf)
            if own:
                return jax.make_array_from_process_local_data(sharding, array, (self.count, *array.shape[1:]))
            return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

        # Meant; device_put would compare arrays of all processes over the network.
        with jax.transfer_guard("allow"):
            return jax.tree.map(place, tree)

    def compile(
        self,
        function: Callable[..., PyTree],
        *args: PyTree,
        sharded: int,
        donate: tuple[int, ...] = (),
        deterministic: bool = False,
    ) -> jax.stages.Compiled:
        """Compiles, ahead of time, a function of one device's arguments with equal results on all devices.

        Args:
          function: averages all that differs.
          args: examples, as `replicate` and `shard` return them.
          sharded: how many of the last arguments are divided over the devices.
          donate: positions of arguments whose memory the results may take over.
          deterministic: asks for the same bits from every compilation and run.
        """
        mapped = jax.pmap(
            function,
            axis_name=AXIS,
            in_axes=(None,) * (len(args) - sharded) + (0,) * sharded,
            out_axes=None,
            devices=list(self.devices),
            donate_argnums=donate,
        )
        options = (DETERMINISTIC if deterministic else {}) | dict(self.options)
        return mapped.lower(*args).compile(compiler_options=options or None)


def choose(count: int | None) -> Devices:
    """The first `count` devices of all processes, process by process, or all of them for None."""
    devices = jax.devices()
    if count is not None and count > len(devices):
        remedy = f"set JAX_NUM_CPU_DEVICES={count} for virtual devices" if devices[0].platform == "cpu" else "use fewer"
        raise InputError(
            f"parallel.devices must be at most the number of devices that JAX sees, {len(devices)} ({devices[0].device_kind}); "
            f"got {count}: {remedy}"
        )
    if jax.process_count() > 1 and count not in (None, len(devices)):
        raise InputError(
            f"parallel.devices must be all or the {len(devices)} devices of the {jax.process_count()} processes; got {count}: "
            "start fewer processes, or let each of them see fewer devices"
        )
    if len(counts := {*Counter(device.process_index for device in devices).values()}) > 1:
        raise InputError(
            f"processes must have equally many devices; got {' and '.join(map(str, sorted(counts)))}: let each of them see as "
            "many as the others, or start one for each device"
        )
    return Devices(tuple(devices[:count]))
