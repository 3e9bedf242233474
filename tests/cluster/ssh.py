"""An ssh server on this machine with a key of its own, started and ended by the tests."""

import os
import shlex
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import free_port

SERVER = "/usr/sbin/sshd"
START_S = 20.0


@contextmanager
def running(folder: Path):
    """A server for this user; gives the command that reaches it on whatever address of this machine."""
    folder.chmod(0o700)
    key, log = folder / "key", folder / "sshd.log"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    port = free_port()
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where the server, as root, confines itself
    options = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": key,
        "AuthorizedKeysFile": folder / "key.pub",
        "PermitRootLogin": "yes",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "SetEnv": " ".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith("JAX_")),
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    server = subprocess.Popen([SERVER, "-D", "-f", "/dev/null", "-E", log, *words])
    files = ("UserKnownHostsFile=/dev/null", "StrictHostKeyChecking=no", "LogLevel=ERROR")
    command = ["ssh", "-p", str(port), "-i", str(key), *(word for option in files for word in ("-o", option))]
    try:
        deadline = time.monotonic() + START_S
        while subprocess.run([*command, "127.0.0.1", "true"], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield shlex.join(command)
    finally:
        server.terminate()
        server.wait(20)
