"""The code and the versions of its packages that computed a result."""

import hashlib
import platform
import re
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gmmae.system.environment import cores

PACKAGES = ("gmmae", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


@cache
def versions() -> dict[str, str]:
    """Of Python and the packages that decide on the numbers."""
    numbers = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            continue
    return numbers


def machine(kind: str) -> str:
    """The accelerator as JAX calls it, or the processor and its usable cores."""
    if kind != "cpu":
        return kind
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    name = match[1] if match else platform.machine()  # an ARM processor has no name there
    return f"{' '.join(name.split())}, {cores()} core{'s' * (cores() > 1)}"


@cache  # the code of a process does not change
def git_commit() -> str | None:
    """The checkout's commit, `-dirty` behind it if changed; None outside a checkout."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def source_hash() -> str:
    """Twelve digits of a SHA-256 of the package's source files, names and contents."""
    here = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(here).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]
