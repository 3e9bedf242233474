"""Environments of the compared frameworks, made by `make study-frameworks`."""

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.child import ROOT
from benchmarks.peers.backends import BACKENDS

FOLDER = ROOT / ".venv-frameworks"
NAMES = {"jax": "", "torch": "torch", "horovod": "horovod", "tensorflow": "keras"}
"""Folder names by a framework's package. "" is the environment of this program."""


def python_of(peer: str, environments: Path) -> str | None:
    """Returns the Python with a backend's framework, or None if its environment was not made."""
    name = NAMES[BACKENDS[peer].package]
    if not name:
        return sys.executable
    path = environments / name / "bin" / "python"
    return str(path) if path.exists() else None


def pythons(peers: Iterable[str], environments: Path) -> dict[str, str]:
    """Returns the Pythons of the backends whose environments exist."""
    return {peer: python for peer in sorted(set(peers)) if (python := python_of(peer, environments))}
