"""The place of this process among others, by the configuration or the variables of srun and mpirun."""

import re
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from gmmae.config.rules import ConfigError
from gmmae.config.schema import DistributedConfig

PORTS = range(20000, 30000)
"""Below those that systems give to outgoing connections."""


class Place(NamedTuple):
    """One of several processes. Process 0 listens at `coordinator`. No `local_devices` are all GPUs it sees."""

    coordinator: str
    num_processes: int
    process_id: int
    local_devices: tuple[int, ...] = ()


def find(config: DistributedConfig, environment: Mapping[str, str]) -> Place | None:
    """The place of this process, or None where it trains alone. The configuration goes before a launcher.

    JAX gets all four facts, because for a missing one it would ask the launcher, and take one GPU of a host that has a single
    process for all its GPUs.
    """
    launched: dict[str, Any] = {"local_devices": ()}
    if config.auto:
        launched |= _open_mpi(environment) or _slurm(environment)  # mpirun in a job has both
    known: dict[str, Any] = {
        key: launched.get(key) if (value := getattr(config, key)) == "auto" else value for key in Place._fields
    }
    missing = [f"distributed.{key}" for key in Place._fields[:3] if known[key] is None]
    if len(missing) == 3:
        return None
    if missing:
        raise ConfigError(
            "distributed.coordinator, num_processes and process_id must all be given, or come from srun or mpirun; "
            f"got no {' and no '.join(missing)}"
        )
    place = Place(**known)
    if place.process_id >= place.num_processes:
        raise ConfigError(
            f"distributed.process_id must be below distributed.num_processes, {place.num_processes}; got {place.process_id}: "
            "count from 0"
        )
    return place if place.num_processes > 1 else None


def _slurm(environment: Mapping[str, str]) -> dict[str, Any]:
    """In a batch script outside of `srun` there is no step: the process trains alone."""
    try:
        count, process_id, local_rank, node = (
            int(environment[f"SLURM_{key}"]) for key in ("STEP_NUM_TASKS", "PROCID", "LOCALID", "NODEID")
        )
        on_nodes = tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
        host = "127.0.0.1" if len(on_nodes) == 1 else first_host(environment["SLURM_STEP_NODELIST"])
        job = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    except (KeyError, ValueError):
        return {}
    return _launched(count, process_id, host, job, local_rank, on_nodes[node], environment)


def _open_mpi(environment: Mapping[str, str]) -> dict[str, Any]:
    """On several hosts process 0 is taken to run where `mpirun` does."""
    try:
        count, process_id, local_size, local_rank = (
            int(environment[f"OMPI_COMM_WORLD_{key}"]) for key in ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")
        )
    except (KeyError, ValueError):
        return {}
    address = environment.get("OMPI_MCA_orte_hnp_uri", "")
    job = environment.get("PMIX_NAMESPACE") or address.partition(".")[0]
    url = re.search(r"tcp://([^,:]+)|tcp6://\[([^,\]]+)", address)
    host = "127.0.0.1" if local_size == count else (url[1] or url[2]) if url else ""
    return _launched(count, process_id, host, job, local_rank, local_size, environment)


def _launched(
    count: int, process_id: int, host: str, job: str, local_rank: int, local_size: int, environment: Mapping[str, str]
) -> dict[str, Any]:
    """One task is no group. A job's processes have one port, which different jobs hardly ever share.

    They take one GPU each on a shared host, unless the launcher shows each process its own only.
    """
    if count == 1:
        return {}
    host = f"[{host}]" if ":" in host else host
    coordinator = f"{host}:{PORTS[zlib.crc32(job.encode()) % len(PORTS)]}" if host else None
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    own_only = visible != "" and "," not in visible
    gpus = (local_rank,) if local_size > 1 and not own_only else ()
    return {"coordinator": coordinator, "num_processes": count, "process_id": process_id, "local_devices": gpus}


def first_host(nodes: str) -> str:
    """The first host of Slurm's list of nodes.

    >>> first_host("node[001-004,7],other"), first_host("a,b"), first_host("rack[2,3]-ib")
    ('node001', 'a', 'rack2-ib')
    """
    return "".join(re.findall(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)[0])


def tasks_per_node(text: str) -> list[int]:
    """Slurm's counts of tasks, node by node.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, repeats in found for _ in range(int(repeats or 1))]
