"""A Slurm of two nodes on this machine, started and ended by the tests: munged, slurmctld and slurmd, all in one folder."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.waiting import free_port

START_S = 30.0
CPUS = 4
"""Memory of each node; more than this machine may have, but the tasks are small."""

CONFIGURATION = """\
ClusterName=gmmae
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits as long as its old credential lives.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
PartitionName=all Nodes={nodes} Default=YES MaxTime=60 State=UP
"""
NODE = "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN\n"


def find_program(name: str):
    """The path of a program, or None; daemons are not on every user's path."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))


def command(*words: str):
    """What a command of Slurm prints."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@contextmanager
def running(folder: Path):
    """Slurm in a folder of its own; gives what has to be in the environment of its commands."""
    (folder / "state").mkdir(parents=True)
    configuration = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    nodes = (host, f"{host}-second")  # the first one's name can be resolved, as on a real cluster
    values = {"host": host, "user": getpass.getuser(), "folder": folder, "nodes": ",".join(nodes)}
    text = CONFIGURATION.format(controller_port=free_port(), **values)
    text += "".join(NODE.format(node=node, host=host, port=free_port(), cpus=CPUS) for node in nodes)
    configuration.write_text(text)
    environment = {"SLURM_CONF": str(configuration)}
    with ExitStack() as started:
        started.enter_context(_daemon("munged", *_munge(folder), log=folder / "munged.out"))
        _wait(lambda: (folder / "munge.socket").exists(), folder)
        started.enter_context(_daemon("slurmctld", "-D", "-f", str(configuration), log=folder / "slurmctld.out"))
        for node in nodes:
            arguments = ("-D", "-N", node, "-f", str(configuration))
            started.enter_context(_daemon("slurmd", *arguments, log=folder / f"slurmd.{node}.out"))
        _wait(lambda: _idle(environment), folder)
        yield environment
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["scancel", "--user", getpass.getuser()], env=os.environ | environment, timeout=10, check=False)


def _munge(folder: Path):
    """A key and a socket of our own; `--force` because a temporary folder's parents are not what munged wants."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    folder.chmod(0o755)
    files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munge.pid", "seed-file": folder / "seed"}
    return ("--foreground", "--force", *(f"--{name}={path}" for name, path in files.items()), f"--log-file={folder}/munge.log")


def _idle(environment: dict[str, str]):
    asked = subprocess.run(
        ["sinfo", "-h", "-o", "%T"], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() == "idle"


@contextmanager
def _daemon(name: str, *arguments: str, log: Path):
    program = find_program(name)
    assert program is not None
    with log.open("wb") as out:
        process = subprocess.Popen([program, *arguments], stdout=out, stderr=out, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(ready, folder: Path):
    deadline = time.monotonic() + START_S
    while not ready():
        if time.monotonic() > deadline:
            said = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in sorted(folder.glob("*.[lo][ou][gt]")))
            raise AssertionError(f"Slurm did not start in {START_S:g} s:\n{said}")
        time.sleep(0.2)
