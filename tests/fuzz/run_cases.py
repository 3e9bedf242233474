"""Damaged work directories of runs and of sweeps."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.faults.damages import DAMAGES
from tests.faults.damages import apply as damage
from tests.fuzz.cases import Case, Change, Row, on, reads, reads_or_refused, refused, unchanged
from tests.fuzz.changes import APPLE_DOUBLE, content, gone, instead, stored

OF_A_RUN = ("evaluate run", "describe with", "export")
CONFIG, RECORD, CHECKPOINTS = "config.toml", "record.json", "checkpoints"
ZEROS = bytes(99)

JSON: dict[str, str | bytes] = {
    "0 bytes": "",
    "text": "not JSON",
    "a list": "[]",
    "a number": "3",
    "null": "null",
    "an empty object": "{}",
    "not UTF-8": b'{"a": "\xff"}',
    "zeros": bytes(100),
    "cut": '{"run_id": "0123", "scaling": "str',
    "deep": "[" * 100_000,
}


def edited(name: str, function: Callable[[Any], Any]) -> Change:
    """A JSON file with other contents."""
    return stored(name, lambda data: json.dumps(function(json.loads(data))).encode())


def replaced(name: str, old: str, new: str) -> Change:
    """A text file in which a text is replaced."""
    return stored(name, lambda data: data.replace(old.encode(), new.encode()))


def _of_runs() -> Iterator[Row]:
    for name, text in JSON.items():
        if name not in ("an empty object", "0 bytes"):
            yield f"{CONFIG}: {name}", content(CONFIG, text), refused(CONFIG)
        yield f"{RECORD}: {name}", content(RECORD, text), refused(RECORD)
    yield f"{CONFIG}: missing", gone(CONFIG), refused(CONFIG)
    yield f"{CONFIG}: an unknown key", content(CONFIG, 'wrkload = "nodules"\n'), refused(CONFIG, "wrkload")
    yield f"{CONFIG}: a value of the wrong type", replaced(CONFIG, "size = 8", 'size = "eight"'), refused(CONFIG, "size")
    yield f"{CONFIG}: another workload", content(CONFIG, 'workload = "segmentation"\n'), refused()
    yield f"{CONFIG}: a workload that is not there", content(CONFIG, 'workload = "nowhere.py"\n'), refused("nowhere.py")
    yield f"{CONFIG}: another model", replaced(CONFIG, "latent_dim = 8", "latent_dim = 9"), refused()
    yield f"{RECORD}: missing", gone(RECORD), refused(RECORD)
    yield f"{RECORD}: a field missing", edited(RECORD, lambda r: {k: v for k, v in r.items() if k != "seed"}), refused(RECORD)
    yield f"{RECORD}: a field more", edited(RECORD, lambda r: r | {"newer": 1}), reads()
    yield f"{RECORD}: a number as text", edited(RECORD, lambda r: r | {"best_epoch": "one"}), reads_or_refused(RECORD)
    yield "history.csv: 0 bytes", content("history.csv", ""), reads()
    yield "history.csv: missing", gone("history.csv"), reads()
    yield "history.csv: zeros", content("history.csv", ZEROS), reads()
    yield "other files", content("._config.toml", APPLE_DOUBLE), reads()
    yield "checkpoints: missing", gone(CHECKPOINTS), refused(CHECKPOINTS)
    yield "checkpoints: empty", instead(CHECKPOINTS, Path.mkdir), refused(CHECKPOINTS)
    yield "checkpoints: a file", instead(CHECKPOINTS, Path.touch), refused(CHECKPOINTS)
    yield "checkpoints: other files beside", content(f"{CHECKPOINTS}/.DS_Store", ""), reads()
    for name in DAMAGES:
        yield f"checkpoint: {name}", _damaged(name), refused(CHECKPOINTS)
    yield "checkpoint: bytes of the arrays changed", _spoilt, refused(CHECKPOINTS)


def _newest(folder: Path) -> Path:
    return max((folder / CHECKPOINTS).iterdir(), key=lambda path: int(path.name))


def _damaged(name: str) -> Change:
    return lambda folder: damage(name, _newest(folder))


def _spoilt(folder: Path) -> None:
    """Sets every fourth byte in the middle of what is stored of the arrays to 255."""
    for path in _newest(folder).glob("arrays/ocdbt.process_*/d/*"):
        data = bytearray(path.read_bytes())
        for i in range(len(data) // 4, len(data) * 3 // 4, 4):
            data[i] = 255
        path.write_bytes(data)


def _of_sweeps() -> Iterator[Row]:
    toml, cell = "sweep.toml", "runs/strong-n1-seed0/record.json"
    for name, text in {
        "text": "not TOML",
        "zeros": ZEROS,
        "not UTF-8": b'mode = "\xff"',
        "an unknown key": "mod = 1\n",
    }.items():
        yield f"{toml}: {name}", content(toml, text), refused(toml)
    yield f"{toml}: missing", gone(toml), refused(toml)
    yield f"{toml}: a folder", instead(toml, Path.mkdir), refused(toml)
    for name, update in {
        "numbers as text": {"epochs": "ten"},
        "NaN seconds": {"clocks": None},
        "a list of stages that is text": {"growth": "ten"},
    }.items():
        yield f"a record: {name}", edited(cell, lambda r, update=update: r | update), refused(cell)
    yield "a record: of another cell", edited(cell, lambda r: r | {"scaling": "weak", "seed": 1}), reads_or_refused(cell)
    history = "runs/strong-n1-seed0/history.csv"
    words = "epoch,steps,samples\none,two,three\n"
    for name, text in {"0 bytes": "", "text": "not a history", "zeros": ZEROS, "words": words}.items():
        yield f"a history: {name}", content(history, text), reads_or_refused("history.csv", like=gone(history))
    times = "step_times/step-times-n1.json"
    yield "step times: NaN", edited(times, lambda t: t | {"train": [[8, 8, float("nan"), 1, 1]]}), refused(times)
    for what, file in {"a record": cell, "step times": times, "plan.json": "plan.json"}.items():
        for name, text in JSON.items():
            yield f"{what}: {name}", content(file, text), refused(file)
    yield "other files", content("runs/strong-n1-seed0/._record.json", APPLE_DOUBLE), reads()
    yield "a record of a cell that is not in the grid", content("runs/strong-n64-seed0/record.json", "{}"), reads()
    yield "no record at all", gone(cell), reads(gone(cell))
    yield "no run at all", gone("runs"), reads(gone("runs"))
    yield "no step times", gone("step_times"), reads(gone("step_times"))


def cases() -> Iterator[Case]:
    """All cases of runs and sweeps."""
    for number, (name, change, expect) in enumerate(_of_runs()):
        command = OF_A_RUN[number % 3]
        yield Case(f"run: {name}", "nodules", change, on(command, expect), apart=name.startswith("checkpoint: "))
        if number % 3 == 0 and "checkpoint" not in name:
            yield Case(f"generator: {name}", "generator", change, on("generate", expect))
    yield Case("generator: of another model", "nodules", unchanged, on("generate", refused("lattice")))
    yield Case("run: of a segmentation", "unet", unchanged, on("generate", refused()))
    for name, change, expect in _of_sweeps():
        yield Case(f"sweep: {name}", "sweep", change, on("report", expect))
