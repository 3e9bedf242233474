"""Launchers on this machine. `make test-cluster` installs them; where one is missing its tests are skipped with the reason."""

import os
import sys

import pytest

from tests.cluster import slurm as slurm_daemons
from tests.cluster import ssh as ssh_server
from tests.launched import ROOT

if not os.environ.get("GMMAE_TEST_CLUSTER"):  # they need daemons and minutes: make test-cluster
    collect_ignore_glob = ["test_*.py"]


def _require(*programs: str):
    """Skips without them, unless `make test-cluster` has promised that everything is there."""
    if missing := [name for name in programs if not slurm_daemons.find_program(name)]:
        text = f"{', '.join(missing)} must be installed: make test-cluster does that"
        (pytest.fail if os.environ.get("GMMAE_TEST_CLUSTER") else pytest.skip)(text)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Compiled programs that all runs share."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def environment(compiled, monkeypatch):
    """What launched processes inherit: this Python, and two virtual devices each."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(compiled))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


@pytest.fixture(scope="session")
def _slurm(tmp_path_factory):
    _require("munged", "slurmctld", "slurmd")
    with slurm_daemons.running(tmp_path_factory.mktemp("slurm")) as variables:
        yield variables


@pytest.fixture
def slurm(_slurm, environment, monkeypatch):
    """A Slurm of two nodes, whose commands are on the path and find it."""
    for name, value in _slurm.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def open_mpi(environment, monkeypatch):
    """Open MPI, told that this may be root and that there are few cores."""
    _require("mpirun")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"):
        monkeypatch.setenv(name, "1")


@pytest.fixture
def ssh(environment, tmp_path_factory, monkeypatch):
    """A server that the command in $SSH reaches on every name of this machine."""
    _require("ssh", "ssh-keygen", ssh_server.SERVER)
    with ssh_server.running(tmp_path_factory.mktemp("ssh")) as command:
        monkeypatch.setenv("SSH", command)
        yield
