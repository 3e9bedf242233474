"""Counts the code that each framework needs to divide a batch among processes, and compares the losses.

    python -m experiments.needs --out DIR [--environments .venv-frameworks]

It counts the lines of `experiments/minimal` that end in a mark such as `# [start]`. A program of one process would not have
them. Each program trains one epoch of 61 samples in steps of 16 and validates on 15 samples, in float64. Neither the last
step of 13 nor the validation divides by two. It runs in one process and in two, and both losses should be equal. gmmae is
`train.py`, which has no such lines.

DIR gets needs.csv, a row a framework: lines by purpose, words on the command line, and the two losses.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.child import ROOT, ask, free_ports
from benchmarks.many_processes import Run
from benchmarks.options import Parser, guarded
from experiments import environments, tables
from experiments.last_batches import CONFIG, MANY, RECIPES
from gmmae.cli.words import as_words
from gmmae.sweep.display import grid_table
from gmmae.system.provenance import git_commit

VALIDATION = 15
PURPOSES = {
    "start": "to meet, wrap and print once",
    "divide": "each its samples",
    "mean": "the true mean of a batch that does not divide",
    "validate": "each validation sample once",
}
MARK = re.compile(r"# \[(\w+)\]$")


class Program(NamedTuple):
    """Minimal program of a framework: its file, the backend whose environment it uses, and its command for n processes."""

    framework: str
    module: str
    peer: str
    typed: str


PROGRAMS = (
    Program("gmmae", "", "ours-2", "`srun` or `mpirun` as they are; by hand three options a process"),
    Program("PyTorch DDP", "ddp", "torch-ddp", "`torchrun --nproc-per-node n`; on several hosts three options more"),
    Program("Horovod with PyTorch", "hvd", "horovod", "`horovodrun -np n`; on several hosts `-H` with their names"),
    Program("Keras, own loop", "mirrored", "keras-2", "an environment variable with all addresses, another for each process"),
)


def marked(text: str) -> dict[str, int]:
    r"""Returns the number of a program's lines by their mark's purpose.

    >>> marked("a = 1\nmeet()  # [start]\nb = 2  # pyright: ignore  # [start]\n")
    {'start': 2, 'divide': 0, 'mean': 0, 'validate': 0}
    """
    found = [match[1] for line in text.splitlines() if (match := MARK.search(line))]
    if unknown := sorted(set(found) - PURPOSES.keys()):
        raise ValueError(f"a mark must be one of {', '.join(PURPOSES)}; got {', '.join(unknown)}")
    return {purpose: found.count(purpose) for purpose in PURPOSES}


def lines_of(module: str) -> dict[str, int]:
    """Returns the number of marked lines of a program in `experiments/minimal`. gmmae has none."""
    return marked((ROOT / "experiments" / "minimal" / f"{module}.py").read_text(encoding="utf-8") if module else "")


def environ(**more: str) -> dict[str, str]:
    """Returns the environment of a process with one thread. Processes of one host communicate over its loopback."""
    named = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return {**os.environ, **named, **more}


def loss(program: Program, folder: Path, count: int, python: str) -> float:
    """Returns the validation loss after an epoch on `count` processes."""
    words = ["-m", f"experiments.minimal.{program.module}", str(folder)]
    launcher = str(Path(python).parent)
    match program.module:
        case "":
            return of_train(folder / f"run_{count}", count)
        case "ddp":
            ports = [f"--master-port={port}" for port in free_ports(1)]
            said = output([[f"{launcher}/torchrun", "--nproc-per-node", str(count), *ports, *words]])
        case "hvd":
            said = output([[f"{launcher}/horovodrun", "--gloo", "-np", str(count), python, *words]])
        case _:
            workers = [f"127.0.0.1:{port}" for port in free_ports(count)]
            tasks = [{"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}} for i in range(count)]
            said = output([[python, *words]] * count, [{"TF_CONFIG": json.dumps(task)} for task in tasks])
    return float(re.split(r"[\s:]", said.strip())[-1])  # horovodrun puts `[0]<stdout>:` before it


def of_train(workdir: Path, count: int) -> float:
    """Returns the validation loss of `train.py`."""
    options = {"data.samples": MANY + VALIDATION, "data.validation": VALIDATION, "precision": "float64"}
    options |= {"stop.max-epochs": 1, "log.tensorboard": False, "config": CONFIG, "workdir": workdir}
    words = [word for name, value in options.items() for word in as_words(name, value)]
    if count == 1:
        output([[sys.executable, "train.py", *words]], [{"JAX_NUM_CPU_DEVICES": "1"}])
    else:
        Run(count, "train.py", *words).output(0)
    return json.loads((workdir / "record.json").read_text())["final_val_loss"]


def output(commands: Sequence[Sequence[str]], more: Sequence[Mapping[str, str]] = ()) -> str:
    """Returns the output of processes that run together.

    Raises:
      SystemExit: one of them failed.
    """
    each = more or [{}] * len(commands)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    started = [subprocess.Popen(command, env=environ(**own), **pipes) for command, own in zip(commands, each, strict=True)]
    said = [process.communicate(timeout=600) for process in started]
    for command, process, (_, errors) in zip(commands, started, said, strict=True):
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{errors[-3000:]}")
    return "\n".join(out for out, _ in said)


def measure(file: Path, pythons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Counts and runs the missing programs of the backends that have a Python."""
    rows: list[dict[str, Any]] = [*tables.read(file)] if file.exists() else []
    done = {row["framework"] for row in rows}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = {"name": CONFIG, "samples": MANY, "validation": VALIDATION, "precision": "float64"}
        ask("benchmarks.peers.gmmae_backend", json.dumps(source), str(folder))
        for program in PROGRAMS:
            if program.framework in done or program.peer not in pythons:
                continue
            losses = {f"loss_{n}": loss(program, folder, n, pythons[program.peer]) for n in (1, 2)}
            rows.append({"framework": program.framework, **lines_of(program.module), **losses, "git_commit": git_commit()})
            print(*rows[-1].values(), flush=True)
            tables.write(file, rows)
    return rows


def summary(rows: Sequence[Mapping[str, str]]) -> list[tuple[str, ...]]:
    """Returns the head and a line for each framework."""
    found: list[tuple[str, ...]] = [("framework", *PURPOSES.values(), "typed", "loss on two processes off one's")]
    for program in PROGRAMS:
        for row in rows:
            if row["framework"] == program.framework:
                off = abs(float(row["loss_2"]) / float(row["loss_1"]) - 1)
                found.append((program.framework, *(row[purpose] for purpose in PURPOSES), program.typed, f"{off:.0e}"))
    return found


def main() -> None:
    """Measures the frameworks and prints the table."""
    parser = Parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--environments", type=Path, default=environments.FOLDER)
    args = parser.parse_args()
    pythons = environments.pythons((recipe.peer for recipe in RECIPES), args.environments)
    if measure(args.out / "needs.csv", pythons):
        print(grid_table(summary(tables.read(args.out / "needs.csv"))))


if __name__ == "__main__":
    guarded(main)
