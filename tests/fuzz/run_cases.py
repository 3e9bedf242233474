"""Damaged work directories of runs and of sweeps."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

from tests.faults.damages import DAMAGES
from tests.faults.damages import apply as damage
from tests.fuzz.cases import Case, Change, Expect, on, reads, reads_or_refused, refused, unchanged

OF_A_RUN = "evaluate run, describe with, export"


def put(name: str, text: str | bytes) -> Change:
    """A file with this text."""
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def gone(name: str) -> Change:
    """Without a file or folder."""
    return lambda folder: rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


def edited(name: str, function: Callable[[Any], Any]) -> Change:
    """A JSON file with other contents."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(function(json.loads(path.read_text()))))

    return change


def replaced(name: str, old: str, new: str) -> Change:
    """A text file in which a text is replaced."""
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


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


def _of_runs() -> Iterator[tuple[str, Change, Expect]]:
    config, record = "config.toml", "record.json"
    for name, text in JSON.items():
        if name not in ("an empty object", "0 bytes"):
            yield f"{config}: {name}", put(config, text), refused(config)
        yield f"{record}: {name}", put(record, text), refused(record)
    yield f"{config}: missing", gone(config), refused(config)
    yield f"{config}: an unknown key", put(config, 'wrkload = "nodules"\n'), refused(config, "wrkload")
    yield f"{config}: a value of the wrong type", replaced(config, "size = 8", 'size = "eight"'), refused(config, "size")
    yield f"{config}: another workload", put(config, 'workload = "segmentation"\n'), refused()
    yield f"{config}: a workload that is not there", put(config, 'workload = "nowhere.py"\n'), refused("nowhere.py")
    yield f"{config}: another model", replaced(config, "latent_dim = 8", "latent_dim = 9"), refused()
    yield f"{record}: missing", gone(record), refused(record)
    yield f"{record}: a field missing", edited(record, lambda r: {k: v for k, v in r.items() if k != "seed"}), refused(record)
    yield f"{record}: a field more", edited(record, lambda r: r | {"newer": 1}), reads()
    yield f"{record}: a number as text", edited(record, lambda r: r | {"best_epoch": "one"}), reads_or_refused(record)
    yield "history.csv: 0 bytes", put("history.csv", ""), reads()
    yield "history.csv: missing", gone("history.csv"), reads()
    yield "history.csv: zeros", put("history.csv", bytes(99)), reads()
    yield "other files", put("._config.toml", b"\0\5\x16\7"), reads()
    checkpoint = "checkpoints"
    yield "checkpoints: missing", gone("checkpoints"), refused(checkpoint)
    yield "checkpoints: empty", lambda folder: (rmtree(folder / checkpoint), (folder / checkpoint).mkdir()), refused(checkpoint)
    yield (
        "checkpoints: a file",
        lambda folder: (rmtree(folder / checkpoint), (folder / checkpoint).touch()),
        refused(checkpoint),
    )
    yield "checkpoints: other files beside", lambda folder: (folder / checkpoint / ".DS_Store").touch(), reads()
    for name in DAMAGES:
        yield f"checkpoint: {name}", _damaged(name), refused(checkpoint)
    yield "checkpoint: bytes of the arrays changed", _spoilt, refused(checkpoint)


def _newest(folder: Path) -> Path:
    return max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))


def _damaged(name: str) -> Change:
    return lambda folder: damage(name, _newest(folder))


def _spoilt(folder: Path) -> None:
    """Every fourth byte of what is stored of the arrays is 255."""
    for path in _newest(folder).glob("arrays/ocdbt.process_*/d/*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 4 : len(data) * 3 // 4 : 4] = b"\xff" * len(range(len(data) // 4, len(data) * 3 // 4, 4))
        path.write_bytes(data)


CELL = "records/strong-n1-seed0.json"


def _of_sweeps() -> Iterator[tuple[str, Change, Expect]]:
    toml = "sweep.toml"
    for name, text in {
        "text": "not TOML",
        "zeros": bytes(99),
        "not UTF-8": b'mode = "\xff"',
        "an unknown key": "mod = 1\n",
    }.items():
        yield f"{toml}: {name}", put(toml, text), refused(toml)
    yield f"{toml}: missing", gone(toml), refused(toml)
    yield f"{toml}: a folder", lambda folder: (gone(toml)(folder), (folder / toml).mkdir()), refused(toml)
    for name, text in JSON.items():
        yield f"a record: {name}", put(CELL, text), refused(CELL)
    yield "a record: without its run", edited(CELL, lambda r: r | {"record": {}}), refused(CELL)
    yield "a record: numbers as text", edited(CELL, lambda r: r | {"record": r["record"] | {"epochs": "ten"}}), refused(CELL)
    yield "a record: NaN seconds", edited(CELL, lambda r: r | {"record": r["record"] | {"clocks": None}}), refused(CELL)
    yield "a record: of another cell", edited(CELL, lambda r: r | {"scaling": "weak", "seed": 1}), reads_or_refused(CELL)
    yield "a record: an unknown outcome", edited(CELL, lambda r: r | {"outcome": "bored"}), refused(CELL)
    history = "runs/strong-n1-seed0/history.csv"
    for name, text in {
        "0 bytes": "",
        "text": "not a history",
        "zeros": bytes(99),
        "words": "epoch,steps,samples\none,two,three\n",
    }.items():
        yield f"a history: {name}", put(history, text), reads_or_refused("history.csv", like=gone(history))
    times = "step_times/step-times-n1.json"
    for name, text in JSON.items():
        yield f"step times: {name}", put(times, text), refused(times)
    yield "step times: NaN", edited(times, lambda t: t | {"train": [[8, 8, float("nan"), 1, 1]]}), refused(times)
    for name, text in JSON.items():
        yield f"plan.json: {name}", put("plan.json", text), refused("plan.json")


def _readable_sweeps() -> Iterator[tuple[str, Change, Expect]]:
    yield "other files", put("records/._strong-n1-seed0.json", b"\0\5\x16\7"), reads()
    yield "a record of a cell that is not in the grid", put("records/strong-n64-seed0.json", "{}"), reads()
    yield "no record at all", gone("records"), reads_or_refused("records", like=gone("records"))
    yield "no run at all", gone("runs"), reads(gone("runs"))
    yield "no step times", gone("step_times"), reads(gone("step_times"))


def cases() -> Iterator[Case]:
    """All cases of runs and sweeps."""
    for number, (name, change, expect) in enumerate(_of_runs()):
        command = OF_A_RUN.split(", ")[number % 3]
        yield Case(f"run: {name}", "nodules", change, on(command, expect), apart=name.startswith("checkpoint: "))
        if number % 3 == 0 and "checkpoint" not in name:
            yield Case(f"generator: {name}", "generator", change, on("generate", expect))
    yield Case("generator: prior.npz of 0 bytes", "generator", put("prior.npz", ""), on("generate", reads()))
    yield Case("generator: of another model", "nodules", unchanged, on("generate", refused("lattice")))
    yield Case("run: of a segmentation", "unet", unchanged, on("describe with, generate", refused()))
    for name, change, expect in (*_of_sweeps(), *_readable_sweeps()):
        yield Case(f"sweep: {name}", "sweep", change, on("report", expect))
