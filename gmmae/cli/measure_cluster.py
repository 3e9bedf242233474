"""`gmmae measure-cluster`: time all-reduces over the devices of a launch, and write the file that `--clusters` reads."""

import datetime
import json
import socket
import time
from collections.abc import Mapping

import jax
import numpy as np

from gmmae.cli.options import MeasureClusterArguments
from gmmae.config.schema import Config
from gmmae.multihost.distributed import Group, join_processes
from gmmae.scaling.cost import StepTimes, affine, ring_s
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, output_file, print_result
from gmmae.system.provenance import machine
from gmmae.training.exact import repeat
from gmmae.training.parallel import Devices, choose
from gmmae.training.step import pmean

TURNS, BLOCKS = 100, 5
"""All-reduces of a block, one after the other in a compiled loop as in training, and blocks, whose median is a time."""


def command(options: MeasureClusterArguments) -> int:
    """Times the devices of a node and all devices, writes the file and prints it. Returns the exit code."""
    if not options.force:
        claim_output(options.out, b"")
    with join_processes(Config(distributed=options.distributed)) as group:
        group.assert_equal({name: str(getattr(options, name)) for name in ("devices_per_node", "sizes")})
        every, per_node = choose(None), options.devices_per_node
        per_node = min(_devices_of_a_host(group) if per_node == "auto" else per_node, every.count)
        if every.count == 1:
            raise InputError("a link needs 2 devices or more; got 1: nothing was written, use more devices or processes")
        times = {
            n: {size: all_reduce_s(Devices(every.devices[:n]), size) for size in options.sizes}
            for n in sorted({per_node, every.count} - {1})
        }
        if group.primary:
            _write(options, every, per_node, times)
    return 0


def _devices_of_a_host(group: Group) -> int:
    hosts = group.all_gather(socket.gethostname())
    counts = np.unique([hosts[device.process_index] for device in jax.devices()], return_counts=True)[1].tolist()
    if len(set(counts)) > 1:
        raise InputError(f"hosts must have the same number of devices; got {counts}: give --devices-per-node")
    return counts[0]


def all_reduce_s(devices: Devices, size_bytes: int) -> float:
    """Returns the seconds of the mean of float32 vectors over devices; 0 where this process has none of the devices."""
    if not devices.own:
        return 0.0
    arguments = devices.replicate(np.int32(TURNS)), devices.shard(np.ones((devices.count, size_bytes // 4), np.float32))
    loop = devices.compile(lambda turns, vector: repeat(pmean, vector, turns), *arguments, sharded=1)
    blocks_s = []
    for _ in range(1 + BLOCKS):  # the first one may start threads and connections
        began = time.perf_counter()
        jax.block_until_ready(loop(*arguments))
        blocks_s.append((time.perf_counter() - began) / TURNS)
    return float(np.median(blocks_s[1:]))


def _link(devices: int, times: Mapping[int, float]) -> tuple[float, float]:
    """Returns α and β of a ring (`cost.ring_s`) by least squares of the relative residuals, with four digits."""
    fixed_s, byte_s = affine(StepTimes(tuple(times), tuple(times.values())))
    if not byte_s > 0:
        took = ", ".join(f"{1e6 * s:.3g} µs for {size}" for size, s in times.items())
        raise InputError(f"all-reduces must take longer the larger they are; got {took} bytes: add larger --sizes")
    messages = 2 * (devices - 1)
    return float(f"{fixed_s / messages:.4g}"), float(f"{messages / devices / byte_s:.4g}")


def _write(options: MeasureClusterArguments, every: Devices, per_node: int, times: Mapping[int, Mapping[int, float]]) -> None:
    links = {n: _link(n, of_sizes) for n, of_sizes in times.items()}
    devices = f"{every.count} × {every.kind}" + (f" in {every.processes} processes" if every.processes > 1 else "")
    made = f"gmmae measure-cluster, {datetime.date.today()}"
    keys: dict[str, object] = {"name": options.name or devices, "device": every.kind, "devices_per_node": per_node}
    inside = links.get(per_node, links[every.count])  # a node of one device has the link between nodes only
    keys |= zip(("alpha_intra_s", "beta_intra_bytes_per_s"), inside, strict=True)
    if every.count > per_node:
        keys |= zip(("alpha_inter_s", "beta_inter_bytes_per_s"), links[every.count], strict=True)
    keys |= {"collective": "ring", "sources": made}
    lines = [f"# {made}: {devices}, {machine(every.kind)}; α in seconds, β in bytes per second."]
    for n, size, s in ((n, size, s) for n, of_sizes in times.items() for size, s in of_sizes.items()):
        lines.append(f"# {n} devices, {size} bytes: {1e6 * s:.1f} µs, by these links {1e6 * ring_s(n, size, *links[n]):.1f} µs")
    lines += ["", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())]
    with output_file(options.out) as part:
        part.write_text("\n".join([*lines, ""]), encoding="utf-8")
    print_result(options.out, [*lines, "", str(options.out)])
