"""Checks a machine with a GPU, measures its speed, and writes one Markdown file to send back.

    python -m benchmarks.gpu_report [--out runs/gpu_report.md] [--sections environment links ...]

`make gpu-report` runs it. Each section is a command in its own process. A section that cannot run gives the reason in a line.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.child import ROOT
from benchmarks.options import Parser, guarded, new_file
from gmmae.system import nvidia
from gmmae.system.files import write_text
from gmmae.system.provenance import git_commit, versions

PYTHON = (sys.executable, "-m")


class Section(NamedTuple):
    """Command of the report, and its purpose.

    Attributes:
      words: the command.
      limit_s: time limit in seconds.
      on_gpu: whether it needs a GPU.
      environ: variables besides this process's.
    """

    title: str
    words: tuple[str, ...]
    limit_s: float = 600.0
    on_gpu: bool = True
    environ: tuple[tuple[str, str], ...] = ()


SECTIONS = {
    "environment": Section("Environment", (*PYTHON, "benchmarks.gpu_links", "devices"), on_gpu=False),
    "links": Section("Memory, and all-reduces of all pairs of GPUs", (*PYTHON, "benchmarks.gpu_links", "pairs")),
    "programs": Section(
        "What was expected: the program, compiled without looking at the GPU",
        (*PYTHON, "benchmarks.device_programs", "--devices", "1", "8", "--modes", "float32", "tf32", "--config", "paper"),
        on_gpu=False,
    ),
    "tests": Section(
        "Tests that need a GPU",
        (*PYTHON, "pytest", "-q", "-p", "no:cacheprovider", "-rs", "tests/gpu"),
        limit_s=1800.0,
        environ=(("JAX_PLATFORMS", "cuda,cpu"),),
    ),
    "run": Section("A run to its target", (sys.executable, "train.py", "--workdir", "runs/gpu_report_{time}"), limit_s=1800.0),
    "limits": Section("Against the device's limits, float32", (*PYTHON, "benchmarks.limits"), limit_s=3600.0),
    "limits-tf32": Section(
        "Against the device's limits, TF32", (*PYTHON, "benchmarks.limits", "--precision", "tf32"), limit_s=3600.0
    ),
    "bench": Section(
        "Against other frameworks, and where the time goes",
        (*PYTHON, "benchmarks", "--parts", "peers", "breakdown", "cost"),
        limit_s=3600.0,
    ),
}


class Outcome(NamedTuple):
    """Output of a section, the reason of an early end (or ""), and its seconds."""

    printed: str
    reason: str
    seconds: float


def outcome(section: Section) -> Outcome:
    """Runs a section's command and raises none of its failures."""
    began = time.perf_counter()
    words = [word.format(time=time.strftime("%Y%m%d_%H%M%S")) for word in section.words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **dict(section.environ)}
    process = subprocess.Popen(
        words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, said = process.communicate(timeout=section.limit_s)
        reason = "" if process.returncode == 0 else why(said or printed, process.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # what it has started too
        printed, _ = process.communicate()
        reason = f"ended after {section.limit_s:.0f} s"
    return Outcome(printed, reason, time.perf_counter() - began)


def why(said: str, code: int) -> str:
    r"""Returns the last line that is not empty, and the exit code.

    >>> why("Traceback (most recent call last):\n  File 'x.py'\nValueError: no GPU\n\n", 1)
    'ValueError: no GPU (exit code 1)'
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{lines[-1][:300] if lines else 'it said nothing'} (exit code {code})"


def text(section: Section, found: Outcome) -> str:
    """Returns a section of the report."""
    left = f"Left out or not finished: {found.reason}\n\n" if found.reason else ""
    shown = f"{found.printed.rstrip()}\n\n" if found.printed.strip() else ""
    return f"## {section.title}\n\n`{' '.join(section.words[1:])}`, {found.seconds:.0f} s\n\n{left}{shown}"


def left_out(section: Section, gpu: nvidia.Gpu | None) -> str:
    """Returns the reason why a section cannot run on this machine, or ""."""
    if not section.on_gpu or (gpu and gpu.extra):
        return ""
    return f"JAX cannot use the GPU, {gpu.name}: {gpu.remedy}" if gpu else "it needs an NVIDIA GPU; nvidia-smi lists none"


def report(names: Iterable[str], gpu: nvidia.Gpu | None) -> Iterable[str]:
    """Yields the parts of the file."""
    about = ", ".join(f"{name} {version}" for name, version in versions().items())
    yield f"# GPU report\n\n{gpu.name if gpu else 'no GPU'}; {about}; commit {git_commit()}\n\n"
    for name in names:
        section = SECTIONS[name]
        reason = left_out(section, gpu)
        found = Outcome("", reason, 0.0) if reason else outcome(section)
        print(f"{name}: {found.reason or 'done'}, {found.seconds:.0f} s", flush=True)
        yield text(section, found)


def main() -> None:
    """Writes the report."""
    parser = Parser(__doc__, "python -m benchmarks.gpu_report")
    parser.add_argument("--out", type=new_file, default=ROOT / "runs" / "gpu_report.md")
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    written = ""
    for part in report(args.sections, nvidia.find()):
        written += part
        write_text(args.out, written)  # as far as it is, should somebody end it
    print(f"{args.out}: please send it back")


if __name__ == "__main__":
    guarded(main)
