"""`gmmae measure-cluster`: time the links between devices, and write the file that `--clusters` reads."""

import datetime
import itertools
import signal
import socket
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import jax

from gmmae.cli.options import MeasureClusterArguments
from gmmae.config.schema import Config
from gmmae.multihost.distributed import join_processes
from gmmae.multihost.peers import Group, Peers
from gmmae.multihost.watchdog import NO_WATCHDOG, Watchdog
from gmmae.scaling import cluster_file
from gmmae.scaling.cost import Cluster
from gmmae.scaling.link_fit import LinkFit, fit_links
from gmmae.system.errors import InputError, Interrupted, exit_code, write_error
from gmmae.system.files import claim_output, output_file, print_result
from gmmae.system.interrupts import twice_as_once
from gmmae.system.provenance import machine, versions
from gmmae.training.collective_times import CollectiveTimes, Overhead, measure
from gmmae.training.parallel import Devices, choose

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""The signals that end all processes. SIGUSR1 is the one that mpirun passes on."""

BAD_RESIDUAL = 0.3
"""The relative error of the fit above which a line warns."""


def command(options: MeasureClusterArguments, command_line: str, parent: Watchdog = NO_WATCHDOG) -> int:
    """Measures, writes the file, and prints what was measured. Returns the exit code."""
    if not options.force:
        claim_output(options.out, b"")
    with join_processes(Config(distributed=options.distributed), command_line, parent) as group:
        group.assert_equal({name: str(getattr(options, name)) for name in ("devices", "devices_per_node", "sizes", "blocks")})
        with _interrupts_end_all(group):
            _measure(options, group)
    return 0


@contextmanager
def _interrupts_end_all(group: Group) -> Iterator[None]:
    """Ends the other processes too where a signal ends one, and says in a line that nothing was written."""
    if not isinstance(group, Peers):
        yield
        return
    handler = twice_as_once(_stop)
    for number in STOPPING:  # the start of several processes leaves them to the system
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    except KeyboardInterrupt as error:
        write_error("interrupted; nothing was written\n")
        group.fail("it was interrupted", exit_code(error))


def _stop(number: int, _: object) -> NoReturn:
    raise Interrupted(code=128 + number)


def _measure(options: MeasureClusterArguments, group: Group) -> None:
    every = choose(None)
    per_node = options.devices_per_node
    per_node = min(_devices_of_a_host(group) if per_node == "auto" else per_node, every.count)
    counts = _counts(options.devices, every, per_node)
    if group.primary:
        print(f"{_devices_text(every)}; {machine(every.kind)}", flush=True)
    times = measure([Devices(every.devices[:count]) for count in counts], options.sizes, options.blocks, group)
    if group.primary:
        _finish(options, every, per_node, times)


def _finish(options: MeasureClusterArguments, every: Devices, per_node: int, times: CollectiveTimes) -> None:
    """Fits the links, writes the file and prints the lines."""
    print(*map(_overhead_text, times.overheads), sep="\n", flush=True)
    if not times.all_reduces:
        raise InputError("a link needs 2 devices or more; got 1: nothing was written, use more devices or processes")
    fit = fit_links(times.all_reduces, per_node)
    named = options.name if options.name is not None else _devices_text(every)
    unfitted = Cluster(named, every.kind, per_node, *fit.inside, sources=f"gmmae measure-cluster, {_today()}")
    cluster = fit.cluster(unfitted)
    with output_file(options.out) as part:
        part.write_text(
            cluster_file.cluster_text(cluster, _facts(options, every, times, fit), times.all_reduces), encoding="utf-8"
        )
    powers = " ".join(str(2**i) for i in range(per_node.bit_length()))
    devices = "" if cluster.beta_inter_bytes_per_s else f" --devices {powers}"  # the default ones are more than a node has
    lines = ["", *cluster_file.times_table(cluster, times.all_reduces), "", *_links_text(cluster, fit)]
    print_result(options.out, [*lines, str(options.out), f"    gmmae plan --clusters {options.out}{devices}"])


def _devices_of_a_host(group: Group) -> int:
    """Returns the number of devices on each host.

    Raises:
      InputError: hosts differ in it, or the processes of a host do not follow each other.
    """
    hosts = group.all_gather([zlib.crc32(socket.gethostname().encode()) & 0x7FFFFFFF])[:, 0].tolist()
    of_devices = [hosts[device.process_index] for device in jax.devices()]
    counts = [len(list(same)) for _, same in itertools.groupby(of_devices)]
    alike = len(set(counts)) == 1 and len(counts) == len(set(of_devices))
    if not alike:
        raise InputError(
            "hosts must have the same number of devices, and their processes consecutive numbers; got "
            f"{', '.join(map(str, counts))} devices host by host: start the processes so, or give --devices-per-node"
        )
    return counts[0]


def _counts(given: Sequence[int] | None, every: Devices, per_node: int) -> list[int]:
    """Returns the numbers of devices to time. By default these are powers of two, a node, and all.

    Several processes can only be timed whole.

    Raises:
      InputError: a number is larger than the number of devices, or divides a process.
    """
    own = every.count // every.processes
    powers = [2**i for i in range(1, every.count.bit_length())]
    default = {*powers, per_node, every.count} - ({1} if every.count > 1 else set())
    counts = sorted(given or default)
    if counts[-1] > every.count:
        virtual = every.platform == "cpu" and every.processes == 1
        change = f"set JAX_NUM_CPU_DEVICES={counts[-1]} for virtual devices" if virtual else "use fewer"
        raise InputError(f"--devices must be at most the {_devices_text(every)} that JAX sees; got {counts[-1]}: {change}")
    whole = [count for count in counts if count < own or count % own == 0]
    if given and (divided := [count for count in counts if count not in whole]):
        raise InputError(
            f"--devices must be below the {own} of a process, or whole processes; got {divided[0]}: use a multiple of {own}"
        )
    return whole


def _devices_text(every: Devices) -> str:
    """Returns the devices in words, such as "2 × cpu" or "16 × NVIDIA H100 in 2 processes"."""
    return f"{every.count} × {every.kind}" + (f" in {every.processes} processes" if every.processes > 1 else "")


def _overhead_text(overhead: Overhead) -> str:
    plural = "s" * (overhead.devices > 1)
    return (
        f"overhead on {overhead.devices} device{plural}: {cluster_file.microseconds(overhead.dispatch_s)} µs for a dispatch, "
        f"{cluster_file.microseconds(overhead.step_s)} µs for an empty step inside a compiled loop"
    )


def _links_text(cluster: Cluster, fit: LinkFit) -> list[str]:
    """Returns the links, and how well the model fits."""
    lines = []
    for where, link in (("inside a node", fit.inside), ("between nodes", fit.between)):
        if link is not None and not (where == "inside a node" and cluster.devices_per_node == 1):
            numbers = f"α = {cluster_file.microseconds(link.alpha_s)} µs, β = {1e-9 * link.beta_bytes_per_s:.3g} GB/s"
            lines.append(f"{where}: {numbers} ({fit.collective}, {cluster.devices_per_node} a node)")
    lines.append(f"the fit is off by {100 * abs(fit.worst_residual):.0f} % at most")
    if abs(fit.worst_residual) > BAD_RESIDUAL:
        lines.append(
            "warning: these times do not follow the model; end other programs and measure again, or give the sizes of gradients"
        )
    if fit.between is None:
        lines.append(f"the link between nodes is not known; a plan by this file has at most {cluster.devices_per_node} devices")
    return lines


def _facts(options: MeasureClusterArguments, every: Devices, times: CollectiveTimes, fit: LinkFit) -> list[str]:
    """Returns the paragraphs at the head of the file."""
    facts = [
        f"Measured by `gmmae measure-cluster` on {_today()}: {_devices_text(every)}, {machine(every.kind)}.",
        ", ".join(f"{name} {version}" for name, version in versions().items()) + ".",
        f"Means of float32 vectors inside one compiled loop, medians of {options.blocks} blocks. The time of an empty step is "
        f"subtracted. The largest relative error of the fit is {100 * abs(fit.worst_residual):.0f} %.",
        *(f"{_overhead_text(overhead).capitalize()}." for overhead in times.overheads),
        "A plan measures the overhead of its own steps. So no key has these numbers.",
    ]
    if every.platform == "cpu":
        facts.append("These are devices of a CPU. Their times say nothing of a GPU's.")
    return facts


def _today() -> str:
    return datetime.datetime.now().astimezone().date().isoformat()
