"""The beginning and the end of a run of several processes; the only module that calls `jax.distributed`.

A process that ends in an error ends at once (`os._exit`): JAX's own way out waits for the others, which may be gone.
"""

import ipaddress
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from gmmae.config.schema import Config, DistributedConfig
from gmmae.multihost import agreement, environment
from gmmae.multihost.launchers import Place, find
from gmmae.multihost.peers import ALONE, STOPPED_TIMEOUTS, WEEK_MS, Group, Peers
from gmmae.multihost.watchdog import NO_WATCHDOG, ExitMessage, Watchdog
from gmmae.system import compilation_cache
from gmmae.system.environment import update_jax
from gmmae.system.errors import InputError, report
from gmmae.system.streams import silence


class StartError(InputError):
    """The processes did not start together."""


@contextmanager
def join_processes(config: Config, command: str, parent: Watchdog = NO_WATCHDOG) -> Iterator[Group]:
    """Joins the processes that train together; no JAX may have run before.

    Args:
      config: of this process.
      command: resumes the run; it is for the message when another process is lost.
      parent: the watchdog of this process.

    Raises:
      InputError: this process trains alone and its input is bad. With others the process ends with the command line's message
        and code instead. All end with the code of the first that failed, or with 75 where one was lost.
    """
    with environment.restored():
        asked = config.distributed
        place = find(asked, os.environ)
        environment.prepare(config, alone=place is None)
        compilation_cache.keep(config.compilation_cache)
        if place is not None:
            _limit_start(place, asked, parent)
        update_jax()
        if place is None:
            yield ALONE
            return
        import jax

        peers = _meet(place, asked, parent, command)
        try:
            if not peers.primary:
                silence(1)  # standard output, where Gloo announces its connections from C++
            peers.assert_equal(agreement.program(config))
            yield peers
            peers.barrier()
            peers.close()
            jax.distributed.shutdown()
        except BaseException as error:
            _end(error, peers)


def _limit_start(place: Place, asked: DistributedConfig, parent: Watchdog) -> None:
    """Tells the watchdog what it needs before this process waits for others in JAX's C++, where no handler of a signal runs."""
    late_s = asked.start_timeout_s + STOPPED_TIMEOUTS * asked.heartbeat_timeout_s
    parent.watch_each_other(late_s, "error: this process has been stopped amid its start: killed\n")
    parent.set_abort_message(
        ExitMessage(
            f"error: all {place.processes} processes must start within distributed.start_timeout_s, "
            f"{asked.start_timeout_s:g} s, and reach process 0 at {place.host}:{place.port}; "
            "got fewer: start them all, with the same coordinator and "
            "distributed.num_processes, each with another distributed.process_id\n",
            StartError.exit_code,
        )
    )
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _meet(place: Place, asked: DistributedConfig, parent: Watchdog, command: str) -> Peers:
    """Starts JAX, with its service at process 0, and makes sure that all are there."""
    import jax
    from jax._src import distributed

    # A signal is the run's to handle (`interrupts`): JAX's service would swallow SIGTERM, and speak on standard error.
    jax.config.update("jax_enable_preemption_service", False)
    host = f"[{place.host}]" if ":" in place.host else place.host
    try:
        with _silent_errors():  # JAX aborts where others do not come; the parent says in one line what JAX says in twenty
            jax.distributed.initialize(
                f"{host}:{place.port}",
                place.processes,
                place.process_id,
                local_device_ids=list(place.local_devices),  # an empty list keeps all; None keeps one under srun and mpirun
                initialization_timeout=round(asked.start_timeout_s),
                heartbeat_timeout_seconds=WEEK_MS // 1000,
                shutdown_timeout_seconds=round(asked.heartbeat_timeout_s),
                coordinator_bind_address=None if BIND_VARIABLE in os.environ else f"{bind_host(host)}:{place.port}",
            )
    except RuntimeError as error:
        raise StartError(
            f"distributed.coordinator must be an address where process 0 can listen; got {place.host}:{place.port} "
            f"({str(error).splitlines()[0]}): give another port"
        ) from error
    client = distributed.global_state.client
    assert client is not None
    peers = Peers(
        client, place.process_id, place.processes, parent, asked.heartbeat_timeout_s, asked.stall_timeout_s or 0.0, command
    )
    parent.set_abort_message(peers.message_of_lost_root())
    return peers


BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"
"""JAX's variable for where process 0 listens, for networks where that is not the address that the others use."""


def bind_host(host: str) -> str:
    """Returns the address where process 0 listens: the one that the others use, on no other interface.

    Many systems give the name of their own host a loopback address, where other hosts would not find it: then on all.

    >>> bind_host("127.0.0.1"), bind_host("[::1]")
    ('127.0.0.1', '[::1]')
    """
    if host == "localhost" or _is_loopback(host.strip("[]")):
        return host
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return host
    return "[::]" if any(map(_is_loopback, found)) else host


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


@contextmanager
def _silent_errors() -> Iterator[None]:
    """Writes nothing to standard error within the block."""
    sys.stderr.flush()
    nowhere, before = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def _end(error: BaseException, peers: Peers) -> NoReturn:
    if isinstance(error, InputError):
        code = report(error)
        peers.fail(str(error), code)
    peers.wait_for_loss()
    traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    peers.fail(" ".join(f"{type(error).__name__}: {error}".split())[:200], 130 if isinstance(error, KeyboardInterrupt) else 1)
