"""The devices of a run, and `pmap`, which only this module calls.

State and data set are replicated, and an epoch's indices and weights are divided. With `in_axes` and `out_axes` None,
replicated arrays have no leading device axis and are not copied.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jax import Device
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from jaxtyping import Int32, PyTree

from gmmae.system.errors import InputError

AXIS = "devices"
"""The axis of `pmap`, over which `lax.pmean` takes means."""

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
        """cpu, gpu or tpu."""
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
        """Copies every array to every device. Of several processes each one gives the same arrays."""
        return self._place(tree, PartitionSpec())

    def shard(self, tree: PyTree) -> PyTree:
        """Divides arrays along their leading axis, one entry for each device. Every process gives them whole."""
        return self._place(tree, PartitionSpec(AXIS))

    def shard_own(self, tree: PyTree) -> PyTree:
        """Divides arrays along their leading axis, one entry for each device of this process, in the order of `own`."""
        if self.absent or self.processes == 1:
            return self.shard(tree)
        sharding = NamedSharding(Mesh(np.array(self.devices), (AXIS,)), PartitionSpec(AXIS))

        def place(leaf: np.ndarray) -> jax.Array:
            return jax.make_array_from_process_local_data(sharding, leaf, (self.count, *leaf.shape[1:]))

        with jax.transfer_guard("allow"):  # it is meant, unlike what the loop's guard looks for
            return jax.tree.map(place, tree)

    def _place(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        sharding = NamedSharding(Mesh(np.array(self.devices), (AXIS,)), spec)
        if self.absent:
            shapes = jax.eval_shape(lambda arrays: arrays, tree)
            return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)
        if sharding.is_fully_addressable:
            return jax.device_put(tree, sharding)

        def place(leaf: ArrayLike) -> jax.Array:
            array = np.asarray(leaf)
            return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

        with jax.transfer_guard("allow"):  # as above; device_put would compare the arrays of all processes, over the network
            return jax.tree.map(place, tree)

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
        """Compiles a function for all devices, ahead of time: it never compiles again, and refuses other shapes.

        Args:
          function: of one device's arguments, with equal results on all of them: it averages all that differs.
          args: example arguments, as `replicate` and `shard` return them.
          sharded: how many arguments, the last ones, are divided over the devices.
          donate: positions of arguments whose memory the results may take over.
          deterministic: asks for the same bits from every compilation and run. Otherwise a GPU may choose between algorithms.
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
