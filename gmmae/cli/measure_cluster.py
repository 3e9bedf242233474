"""`gmmae measure-cluster`: time all-reduces over the devices of a launch, for `--clusters`."""

import datetime
import json
import socket
import time
from collections.abc import Sequence

import jax
import numpy as np

from gmmae.cli.options import MeasureClusterArguments
from gmmae.config.schema import Config
from gmmae.multihost.distributed import join_processes
from gmmae.scaling.cost import StepTimes, affine, ring_s
from gmmae.system.errors import InputError
from gmmae.system.files import claim_output, output_file, print_result
from gmmae.system.provenance import machine
from gmmae.training.exact import repeat
from gmmae.training.parallel import Devices, choose
from gmmae.training.step import pmean

TURNS, BLOCKS = 100, 5
"""All-reduces of a block, in a compiled loop as in training, and blocks, whose median is a time."""


def command(options: MeasureClusterArguments) -> None:
    """Times the devices of a node and all devices, and writes the file."""
    if not options.force:
        claim_output(options.out, b"")
    with join_processes(Config(distributed=options.distributed)) as group:
        group.assert_equal({name: str(getattr(options, name)) for name in ("devices_per_node", "sizes")})
        every, node = choose(None), options.devices_per_node
        if node == "auto":
            hosts = group.all_gather(socket.gethostname())
            counts = np.unique([hosts[device.process_index] for device in jax.devices()], return_counts=True)[1].tolist()
            if len(set(counts)) > 1:
                raise InputError(f"hosts must have the same number of devices; got {counts}: give --devices-per-node")
            node = counts[0]
        node = min(node, every.count)
        if every.count == 1:
            raise InputError("a link needs 2 devices or more; got 1: nothing was written, use more devices or processes")
        measured = {n: all_reduces(Devices(every.devices[:n]), options.sizes) for n in sorted({node, every.count} - {1})}
    if not group.primary:
        return
    devices = f"{every.count} × {every.kind}" + f" in {every.processes} processes" * (every.processes > 1)
    made = f"gmmae measure-cluster, {datetime.date.today()}"
    keys: dict[str, object] = {"name": options.name or devices, "device": every.kind, "devices_per_node": node}
    lines = [f"# {made}: {devices}, {machine(every.kind)}; α in seconds, β in bytes per second."]
    links = {}
    for n, times in measured.items():
        fixed_s, byte_s = affine(times)
        if not byte_s > 0:
            took = ", ".join(f"{1e6 * s:.3g} µs for {size}" for size, s in zip(*times, strict=True))
            raise InputError(f"all-reduces must take longer the larger they are; got {took} bytes: add larger --sizes")
        messages = 2 * (n - 1)  # of a ring
        links[n] = float(f"{fixed_s / messages:.4g}"), float(f"{messages / n / byte_s:.4g}")
        for size, s in zip(*times, strict=True):
            lines.append(
                f"# {n} devices, {size} bytes: {1e6 * s:.1f} µs, by these links {1e6 * ring_s(n, size, *links[n]):.1f} µs"
            )
    # A node of one device has the link between nodes only.
    keys["alpha_intra_s"], keys["beta_intra_bytes_per_s"] = links.get(node, links[every.count])
    if every.count > node:
        keys["alpha_inter_s"], keys["beta_inter_bytes_per_s"] = links[every.count]
    keys |= {"collective": "ring", "sources": made}
    lines += ["", *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())]
    with output_file(options.out) as part:
        part.write_text("\n".join([*lines, ""]), encoding="utf-8")
    print_result(options.out, [*lines, "", options.out])


def all_reduces(devices: Devices, sizes: Sequence[int]) -> StepTimes:
    """Seconds of means of float32 vectors over devices by bytes; none in a process without these."""
    seconds = []
    for size in sizes if devices.own else ():
        arguments = devices.replicate(np.int32(TURNS)), devices.shard(np.ones((devices.count, size // 4), np.float32))
        loop = devices.compile(lambda turns, vector: repeat(pmean, vector, turns), *arguments, sharded=1)
        blocks_s = []
        for _ in range(1 + BLOCKS):  # the first one may start threads and connections
            began = time.perf_counter()
            jax.block_until_ready(loop(*arguments))
            blocks_s.append((time.perf_counter() - began) / TURNS)
        seconds.append(float(np.median(blocks_s[1:])))
    return StepTimes(tuple(sizes), tuple(seconds))
