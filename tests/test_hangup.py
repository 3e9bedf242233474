"""A terminal that is closed under a run: SIGHUP, and nobody there who could read what it says."""

import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from gmmae.config.toml import to_toml
from gmmae.system.streams import Outlasting
from gmmae.training.workdir import WorkDir
from tests.launched import ROOT
from tests.small import checkpoint_epochs, small
from tests.waiting import wait_until

START_S = 120.0

ON_A_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # this process leads its session: SIGHUP is sent to it
if sys.argv[1] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "train.py", *sys.argv[2:]])
"""


class Terminal(NamedTuple):
    """A run without end on a terminal."""

    process: subprocess.Popen
    master: int
    workdir: Path
    nohup: bool

    def epochs(self):
        return len(WorkDir(self.workdir).read_rows())

    def wait_for(self, epochs: int):
        wait_until(lambda: self.epochs() >= epochs or self.process.poll() is not None, START_S)
        assert self.process.poll() is None, "the run has ended"


@pytest.fixture(params=["as ever", "nohup"])
def terminal(request, tmp_path):
    file, workdir = tmp_path / "endless.toml", tmp_path / "run"
    file.write_text(to_toml(small(stop__max_epochs=1_000_000, checkpoint__every_epochs=1_000_000)))
    master, slave = pty.openpty()
    command = [sys.executable, "-c", ON_A_TERMINAL, request.param, "--config", file, "--workdir", workdir]
    process = subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    run = Terminal(process, master, workdir, request.param == "nohup")
    threading.Thread(target=read_all, args=(master,), daemon=True).start()  # as a terminal does
    yield run
    process.kill()
    process.wait()


def read_all(master: int):
    with suppress(OSError):
        while os.read(master, 65536):
            pass


@pytest.mark.slow
def test_a_closed_terminal_ends_a_run_with_a_checkpoint_but_under_nohup_the_run_outlasts_it(terminal):
    terminal.wait_for(2)
    os.close(terminal.master)
    if terminal.nohup:
        terminal.wait_for(terminal.epochs() + 20)
        terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(START_S) == (143 if terminal.nohup else 129)
    record = WorkDir(terminal.workdir).read_record()
    assert record is not None
    assert (record.stop_reason, record.epochs) == ("sigterm" if terminal.nohup else "sighup", terminal.epochs())
    assert checkpoint_epochs(terminal.workdir) == [terminal.epochs()]


def test_a_stream_that_nobody_reads_is_silent():
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        out = Outlasting(stream)
        assert out.write("read\n") == 5
        out.flush()
        assert os.read(reader, 10) == b"read\n"
        os.close(reader)
        for _ in range(2):
            out.write("nobody\n")
            out.flush()
        assert out.fileno() == writer
