"""Several processes that train together: how they meet, agree and end. The only module that calls `jax.distributed`.

Process 0 has JAX's coordination service, a store of keys with barriers. A process that is silent for
`distributed.heartbeat_timeout_s` is lost, and JAX aborts all others (SIGABRT), also inside XLA. One that ends in an error first
writes message and code to the store, and all others end with that code, by `os._exit`: JAX's own end waits for processes that
may be gone.
"""

import faulthandler
import ipaddress
import json
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

from gmmae.config.schema import Config, DistributedConfig, flatten
from gmmae.multihost import environment
from gmmae.multihost.launchers import Place, find
from gmmae.scaling.identity import identity_fields
from gmmae.system import compilation_cache
from gmmae.system.environment import update_jax
from gmmae.system.errors import InputError, exit_code, report, write_error
from gmmae.system.guard import as_input_error
from gmmae.system.provenance import source_hash, versions
from gmmae.system.streams import silence

if TYPE_CHECKING:
    from jaxlib._jax import DistributedRuntimeClient

T = TypeVar("T")

WEEK_MS = 7 * 24 * 3600 * 1000
STALLED_EPOCHS = 10
"""An epoch hangs that takes as many times the longest one before, and `distributed.stall_timeout_s`."""

TOGETHER = ("stop.", "parallel.", "checkpoint.", "log.")
"""By these processes decide when to do something together, such as to wait for a checkpoint."""


class DisagreementError(InputError):
    """The processes differ, and would average gradients of different runs."""


class Group:
    """The processes that train together, each of which calls these methods in the same order; here only one."""

    primary = True
    """Of process 0, which alone writes and prints."""

    def all_gather(self, value: T) -> list[T]:
        """The values of all processes, in their order, once all are here; any value that JSON has.

        It waits for a week, unlike a collective operation of XLA.
        """
        return [value]

    def epoch_ended(self) -> None:
        """Sets the time limit of the next epoch."""

    def assert_equal(self, values: dict[str, str]) -> None:
        """Compares values by their names; raises DisagreementError."""
        of_processes = self.all_gather(values)
        first, names = of_processes[0], dict.fromkeys(name for one in of_processes for name in one)
        differing = [name for name in names if any(one.get(name) != first.get(name) for one in of_processes)]
        if differing:
            name = differing[0]
            other = next(i for i, one in enumerate(of_processes) if one.get(name) != first.get(name))
            found = f"{name} {first.get(name)} on process 0 and {of_processes[other].get(name)} on process {other}"
            more = f"; also {', '.join(differing[1:4])}" if differing[1:] else ""
            raise DisagreementError(
                f"all processes must have the same configuration, versions, code and data; got {found}{more}"
            )


ALONE = Group()


class _Several(Group):
    def __init__(self, client: "DistributedRuntimeClient", process_id: int, processes: int, asked: DistributedConfig) -> None:
        self._client, self._me, self._processes, self._asked = client, process_id, processes, asked
        self.primary = process_id == 0
        self._calls, self._began, self._longest_s = 0, math.nan, 0.0
        self._stderr = sys.stderr
        self._ending = threading.Lock()
        self._hears = threading.Thread(target=self._end_with_others, name="ends of others", daemon=True)
        self._hears.start()

    def all_gather(self, value: T) -> list[T]:
        """Two places take turns: who writes knows that all have read what was there."""
        self._calls += 1
        place = f"gathered/{self._calls % 2}/"
        self._client.key_value_set(f"{place}{self._me}", json.dumps(value), allow_overwrite=True)
        self._client.wait_at_barrier(f"gathered/{self._calls}", WEEK_MS)
        values = {int(name.rpartition("/")[2]): json.loads(text) for name, text in self._client.key_value_dir_get(place)}
        return [values[process] for process in range(self._processes)]

    def epoch_ended(self) -> None:
        """An epoch that does not end prints where it hangs and is killed, also inside XLA; the first has no limit."""
        epoch_s, self._began = time.monotonic() - self._began, time.monotonic()
        if self._asked.stall_timeout_s and not math.isnan(epoch_s):
            self._longest_s = max(epoch_s, self._longest_s)
            limit_s = max(self._asked.stall_timeout_s, STALLED_EPOCHS * self._longest_s)
            faulthandler.dump_traceback_later(limit_s)
            signal.alarm(math.ceil(limit_s) + 5)

    def leave(self) -> None:
        """No process is lost after this."""
        import jax

        self.all_gather(None)
        if self.primary:
            self._client.key_value_set("end", "null")
        self._hears.join()  # a thread in JAX's C++ would abort Python's own end
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        jax.distributed.shutdown()

    def fail(self, error: BaseException) -> NoReturn:
        """Ends all processes with the error's code."""
        import jax

        known = as_input_error(error)
        if known is None and isinstance(error, jax.errors.JaxRuntimeError):
            time.sleep(2 * self._asked.heartbeat_timeout_s)  # where the cause is a lost process, JAX aborts this one meanwhile
        self._ending.acquire()
        if known is not None:
            self._end(report(known), str(known))
        traceback.print_exception(error)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        self._end(exit_code(error) if isinstance(error, KeyboardInterrupt) else 1, reason)

    def _end(self, code: int, reason: str = "") -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        with suppress(Exception):  # another process was first, or is gone
            self._client.key_value_set("end", json.dumps([self._me, reason, code]))
        with suppress(Exception):  # a process that is not here in time is lost, and JAX ends the others
            self._client.wait_at_barrier("end", round(1000 * self._asked.heartbeat_timeout_s))
        if self.primary:
            time.sleep(1)  # JAX would abort a process that has not heard yet
        os._exit(code)

    def _end_with_others(self) -> None:
        try:
            end = json.loads(self._client.blocking_key_value_get("end", WEEK_MS))
        except Exception as error:  # a week is over, or JAX is about to end this process
            return self._end_with_others() if "DEADLINE_EXCEEDED" in str(error) else None
        if end is None:  # all have left
            return
        process, reason, code = end
        self._ending.acquire()  # for good: the other thread of the two waits until the process is gone
        sys.stderr = self._stderr  # the other mutes it to read a checkpoint
        write_error(f"error: process {process} has ended: {reason}\n")
        self._end(code)


@contextmanager
def join_processes(config: Config) -> Iterator[Group]:
    """Joins the processes that train together; no JAX may have run before.

    Raises:
      InputError: of a process that trains alone. Several all end with the message and code instead.
    """
    with environment.restored():
        place = find(config.distributed, os.environ)
        environment.prepare(config, alone=place is None)
        compilation_cache.keep(config.compilation_cache)
        if place is None:
            update_jax()
            yield ALONE
            return
        group = _meet(place, config.distributed)
        try:
            if not group.primary:
                silence(1)  # standard output, where Gloo speaks from C++
            together = {key: value for key, value in flatten(config) if key.startswith(TOGETHER)}
            together.pop("parallel.fetch_threads")
            same = {key: json.dumps(value) for key, value in (identity_fields(config) | together).items()}
            begins = {"init_from is given": str(config.init_from is not None)}
            group.assert_equal(same | begins | versions() | {"the sources of gmmae": source_hash()})
            yield group
            group.leave()
        except BaseException as error:
            group.fail(error)


def _meet(place: Place, asked: DistributedConfig) -> _Several:
    def end_late() -> None:
        os._exit(
            report(
                InputError(
                    f"all {place.num_processes} processes must start within distributed.start_timeout_s, "
                    f"{asked.start_timeout_s:g} s, and reach process 0 at {place.coordinator}; got fewer: start them all, with "
                    "the same coordinator and distributed.num_processes, each with another distributed.process_id"
                )
            )
        )

    late = threading.Timer(asked.start_timeout_s, end_late)
    late.daemon = True
    late.start()
    update_jax()
    import jax
    from jax._src import distributed

    # A signal is the run's to handle (`interrupts`): JAX's service would swallow SIGTERM, and speak on standard error.
    jax.config.update("jax_enable_preemption_service", False)
    # The variable says where process 0 listens, if that is not the address that the others use.
    host, _, port = place.coordinator.rpartition(":")
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # no handler of Python's runs while JAX waits in C++
    try:
        jax.distributed.initialize(
            place.coordinator,
            place.num_processes,
            place.process_id,
            local_device_ids=list(place.local_devices),  # an empty list keeps all; None keeps one under srun and mpirun
            initialization_timeout=2 * math.ceil(asked.start_timeout_s) + 60,  # JAX would abort, and say why in twenty lines
            heartbeat_timeout_seconds=math.ceil(asked.heartbeat_timeout_s),
            shutdown_timeout_seconds=math.ceil(asked.heartbeat_timeout_s),
            coordinator_bind_address=None if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ else f"{bind_host(host)}:{port}",
        )
    except RuntimeError as error:
        raise InputError(
            f"distributed.coordinator must be an address where process 0 can listen; got {place.coordinator} "
            f"({str(error).splitlines()[0]}): give another port"
        ) from error
    finally:
        late.cancel()
        signal.signal(signal.SIGINT, before)
    client = distributed.global_state.client
    assert client is not None
    return _Several(client, place.process_id, place.num_processes, asked)


def bind_host(host: str) -> str:
    """The address where process 0 listens, which the others use.

    It is on all interfaces where a system gives its own name a loopback address, which other hosts would not reach.

    >>> bind_host("127.0.0.1"), bind_host("[::1]"), bind_host("0:0:0:0:0:0:0:1")
    ('127.0.0.1', '[::1]', '0:0:0:0:0:0:0:1')
    """
    name = host.strip("[]")
    with suppress(ValueError):
        ipaddress.ip_address(name)
        return host  # an address is meant as it is
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return host
    elsewhere = name == "localhost" or not any(ipaddress.ip_address(each).is_loopback for each in found)
    return host if elsewhere else "[::]"
