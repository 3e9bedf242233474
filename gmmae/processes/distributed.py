"""The beginning and the end of a run of several processes; the only module that calls `jax.distributed`.

A process that ends in an error ends at once (`os._exit`): JAX's own way out waits for the others, which may be gone.
"""

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

from gmmae.base import compiled, environment
from gmmae.base.config import Config
from gmmae.base.errors import InputError, report
from gmmae.processes import agreement
from gmmae.processes.launchers import Place, find
from gmmae.processes.peers import ALONE, Group, PeerLost, Peers

JAX_PATIENCE_S = 7 * 24 * 3600
"""JAX's heartbeat timeout, a week: the link notices losses, and names them. JAX's clock goes on while all processes are
suspended, and it would abort them, in C++ and without our message, when they are continued."""


@contextmanager
def joined(config: Config, command: str) -> Iterator[Group]:
    """The processes that train together, this one among them; no JAX may have run before.

    Args:
      config: of this process.
      command: what resumes the run, for the message when another process is lost.

    Raises:
      InputError: this process trains alone and something is wrong. With others, the process ends with the message and the
        code that the command line would have given; all of them with the code of the first that failed, or with 75 if one was
        lost.
    """
    asked = config.distributed
    place = find(asked, os.environ)
    environment.prepare(config, alone=place is None)
    compiled.keep(config.compilation_cache)
    environment.tell_jax()
    if place is None:
        yield ALONE
        return
    # What goes wrong up to here is raised: nobody is connected yet.
    peers = Peers(place, asked.start_timeout_s, asked.heartbeat_timeout_s, partial(_end_without, command))
    try:
        if not peers.primary:
            _be_silent()
        agreement.require_same(peers.gather(agreement.program(config)))
        _start_jax(place, peers, asked.start_timeout_s, asked.heartbeat_timeout_s)
        yield peers
        peers.gather(None)  # JAX waits for the others no longer than it would for a lost one
        _stop_jax()
    except BaseException as error:
        _end(error, peers, asked.heartbeat_timeout_s)
    peers.close()


def _be_silent() -> None:
    """Shuts standard output, where Gloo announces its connections from C++; errors go to standard error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _start_jax(place: Place, peers: Peers, start_timeout_s: float, heartbeat_timeout_s: float) -> None:
    """JAX's coordinator listens on a free port of process 0; the port of the link is taken."""
    import jax

    # A signal is the run's to handle (`interrupts`): JAX's service would swallow SIGTERM, and speak on standard error.
    jax.config.update("jax_enable_preemption_service", False)
    port = peers.gather(_free_port() if peers.primary else 0)[0]
    host = f"[{place.host}]" if ":" in place.host else place.host
    jax.distributed.initialize(
        f"{host}:{port}",
        place.processes,
        place.process_id,
        local_device_ids=list(place.local_devices),  # an empty list keeps all; None would keep one under srun and mpirun
        initialization_timeout=round(start_timeout_s),
        heartbeat_timeout_seconds=JAX_PATIENCE_S,
        shutdown_timeout_seconds=round(heartbeat_timeout_s),
    )
    _delay_aborts()
    jax.devices()  # meets the others once more, now that all are sure to be there


def _delay_aborts() -> None:
    """Gives the link's thread time for its message before JAX's C++ ends this process.

    When process 0 dies, JAX sees it by a broken connection as the link does, and calls `abort` at once. A C function as the
    handler of SIGABRT holds up the aborting thread alone: `sleep`, which takes the signal's number, 6, as seconds. Then the
    process aborts as ever.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _stop_jax() -> None:
    import jax

    jax.distributed.shutdown()


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return probe.getsockname()[1]


def _end_without(command: str, text: str, code: int) -> None:
    """The end of this process because another one is lost; called in the link's thread, whatever the main one waits for."""
    with suppress(OSError):  # the terminal may be closed
        # In one piece: JAX writes there from threads of its own.
        sys.stderr.write(f"error: {text}; to resume, start all processes again: {command}\n")
        sys.stderr.flush()
    os._exit(code)


def _end(error: BaseException, peers: Peers, heartbeat_timeout_s: float) -> NoReturn:
    if isinstance(error, agreement.DisagreementError):
        code = report(error)
        peers.close()
    elif isinstance(error, InputError):
        code = report(error)
        peers.fail(str(error), code)
    else:
        if _may_come_of_a_loss(error):
            peers.await_loss(heartbeat_timeout_s + 5)
            if peers.lost:
                time.sleep(60)  # the link's thread is about to end this process
        traceback.print_exception(error)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        peers.fail(" ".join(f"{type(error).__name__}: {error}".split())[:200], code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _may_come_of_a_loss(error: BaseException) -> bool:
    """A collective operation fails as soon as the connection to a killed process breaks, maybe before the link has seen it."""
    import jax

    return isinstance(error, PeerLost | jax.errors.JaxRuntimeError)
