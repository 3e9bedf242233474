"""The place of this process among others, from the configuration or from the variables of srun and mpirun."""

import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from gmmae.config.rules import ConfigError
from gmmae.config.schema import DistributedConfig

PORTS = range(20000, 30000)
"""The default ports of a coordinator, below those that systems give to outgoing connections."""


class Place(NamedTuple):
    """One process among several.

    Attributes:
      process_id: from 0.
      processes: how many there are.
      host, port: where process 0 listens.
      local_devices: GPUs of this process by number; empty: all that it sees.
    """

    process_id: int
    processes: int
    host: str
    port: int
    local_devices: tuple[int, ...] = ()


class _Launched(NamedTuple):
    """The facts that a launcher gives of a process; None where it does not."""

    process_id: int | None = None
    processes: int | None = None
    coordinator: str | None = None
    local_rank: int = 0
    local_size: int = 1


def find(config: DistributedConfig, environment: Mapping[str, str]) -> Place | None:
    """The place of this process, or None where it trains alone. The configuration goes before a launcher.

    Raises:
      ConfigError: the process id is out of range, or a part is given and the rest is not known.
    """
    launched = (_slurm(environment) or _open_mpi(environment)) if config.auto else None
    process = launched or _Launched()
    coordinator = process.coordinator if config.coordinator == "auto" else config.coordinator
    processes = process.processes if config.num_processes == "auto" else config.num_processes
    process_id = process.process_id if config.process_id == "auto" else config.process_id
    known = {"coordinator": coordinator, "num_processes": processes, "process_id": process_id}
    if set(known.values()) == {None}:
        return None
    if coordinator is None or processes is None or process_id is None:
        missing = [f"distributed.{key}" for key, value in known.items() if value is None]
        raise ConfigError(
            "distributed.coordinator, num_processes and process_id must all be given, or come from srun or mpirun; "
            f"got no {' and no '.join(missing)}"
        )
    if process_id >= processes:
        raise ConfigError(
            f"distributed.process_id must be below distributed.num_processes, {processes}; got {process_id}: count from 0"
        )
    if processes == 1:
        return None
    host, _, port = coordinator.rpartition(":")
    gpus = _shared_out(process, environment) if config.local_devices == "auto" else config.local_devices
    return Place(process_id, processes, host.strip("[]"), int(port), gpus)


def _shared_out(process: _Launched, environment: Mapping[str, str]) -> tuple[int, ...]:
    """One GPU each where several processes share a host, unless the launcher has shown each one its own only."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    own_only = visible != "" and "," not in visible
    return (process.local_rank,) if process.local_size > 1 and not own_only else ()


def _slurm(environment: Mapping[str, str]) -> _Launched | None:
    """A task of `srun`. In a batch script outside of `srun` there is no step, and the process trains alone."""
    try:
        processes = int(environment["SLURM_STEP_NUM_TASKS"])
        nodes = environment["SLURM_STEP_NODELIST"]
        job, step = environment["SLURM_JOB_ID"], environment["SLURM_STEP_ID"]
        process_id, local_rank, node = (int(environment[f"SLURM_{key}"]) for key in ("PROCID", "LOCALID", "NODEID"))
        on_nodes = tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
    except (KeyError, ValueError):
        return None
    if processes == 1:
        return None
    host = "127.0.0.1" if len(on_nodes) == 1 else first_host(nodes)
    return _Launched(process_id, processes, f"{host}:{_port(f'{job}.{step}')}", local_rank, on_nodes[node])


def _open_mpi(environment: Mapping[str, str]) -> _Launched | None:
    """A process of `mpirun`. On several hosts process 0 is taken to run where `mpirun` does; if not, give the coordinator."""
    try:
        processes, process_id, local_size, local_rank = (
            int(environment[f"OMPI_COMM_WORLD_{key}"]) for key in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")
        )
    except (KeyError, ValueError):
        return None
    if processes == 1:
        return None
    address = environment.get("OMPI_MCA_orte_hnp_uri", "")
    job = environment.get("PMIX_NAMESPACE") or address.partition(".")[0]
    url = re.search(r"tcp://([^,:]+)|tcp6://\[([^,\]]+)", address)
    host = "127.0.0.1" if local_size == processes else (url[1] or url[2]) if url else ""
    return _Launched(process_id, processes, f"{host}:{_port(job)}" if host else None, local_rank, local_size)


def _port(job: str) -> int:
    """The same port in all processes of a job; different jobs hardly ever share one."""
    return PORTS[zlib.crc32(job.encode()) % len(PORTS)]


def first_host(nodes: str) -> str:
    """The first host of Slurm's list of nodes.

    >>> first_host("node[001-004,7],other"), first_host("a,b"), first_host("rack[2,3]-ib")
    ('node001', 'a', 'rack2-ib')
    """
    match = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else nodes


def tasks_per_node(text: str) -> list[int]:
    """Slurm's counts of tasks, node by node.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        count, _, repeats = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(repeats or 1)
    return counts
