"""The environments of the frameworks that the study compares, which `make study-frameworks` makes."""

import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.child import ROOT
from benchmarks.peers.backends import BACKENDS

FOLDER = ROOT / ".venv-frameworks"
NAMES = {"jax": "", "torch": "torch", "horovod": "horovod", "tensorflow": "keras"}
"""By a framework's package; "" is the environment that this program runs in."""


def python_of(peer: str, environments: Path) -> str | None:
    """The Python that has a peer's framework; None where its environment was not made."""
    name = NAMES[BACKENDS[peer].package]
    if not name:
        return sys.executable
    path = environments / name / "bin" / "python"
    return str(path) if path.exists() else None


def pythons(peers: Iterable[str], environments: Path) -> dict[str, str]:
    """Those of the peers whose environments there are."""
    return {peer: python for peer in sorted(set(peers)) if (python := python_of(peer, environments))}
