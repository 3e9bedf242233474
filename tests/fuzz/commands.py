"""The commands of the fuzz test: how each is called on a folder, and its result as plain values."""

import csv
import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk

from tests.fuzz.calls import Outcome

Result = dict[str, object]

FORMATS = r"(\.nii|\.nii\.gz|\.mhd|\.mha|\.nrrd|\.npy|\.npz|\.png)$"
"""Endings of volumes."""

SIZE = ("--data.shape", "8")
ONE_WORKER = ("--data.workers", "1", "--data.scan-time-limit-s", "none")
TINY = (
    *("--optim.batch-size", "4", "--stop.max-epochs", "1", "--stop.target", "none", "--parallel.devices", "1"),
    *("--log.no-tensorboard", "--log.figure-epochs", "0", "--checkpoint.every-epochs", "1"),
)
NODULES = (*("--model.filters", "3", "3", "--model.kernels", "3", "3"), *("--model.latent-dim", "8", "--model.components", "4"))
UNET = ("--data.jitter", "2", "--model.features", "2")


class Call(NamedTuple):
    """The places of a call.

    Attributes:
      root: the folder, as it is given to the command.
      source: `data.source` of the folder.
      work: a folder for what the command writes.
      shared: a folder with trained runs, and with clean folders that go with the changed one.
    """

    root: str
    source: str
    work: Path
    shared: Path

    @property
    def data(self) -> tuple[str, ...]:
        """The options that name the folder."""
        return ("--data.source", self.source, "--data.root", self.root)

    @property
    def cache(self) -> tuple[str, ...]:
        """The options of the cache, which is a new one in each call."""
        return ("--data.cache", str(self.work / "cache"), *ONE_WORKER)


class Command(NamedTuple):
    """A command: its arguments, and the result that it leaves in the work folder."""

    arguments: Callable[[Call], Sequence[str]]
    result: Callable[[Path, Outcome], Result]


def table(path: Path, *columns: str) -> Result:
    """Some columns of a CSV, by name; all of them if none are named. Rows are in order of their cells, names first."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: [row[name] for name in columns or sorted(row, key=_names_first)])
    names = columns or tuple(rows[0])
    return {name: [_value(row[name]) for row in rows] for name in names}


def _names_first(column: str) -> tuple[bool, str]:
    return column != "name", column


def _value(cell: str) -> object:
    try:
        return float(cell)
    except ValueError:
        return cell


def _prepared(work: Path, _: Outcome) -> Result:
    (entry,) = (path for path in (work / "cache").iterdir() if (path / "nodules.npz").is_file())
    with np.load(entry / "nodules.npz") as arrays:
        found: Result = {name: arrays[name] for name in arrays.files if name != "places"}
    if "files" in found:  # the right result may be of files in another folder, or in another format
        found["files"] = [re.sub(FORMATS, "", Path(str(file)).name, flags=re.I) for file in np.asarray(found["files"])]
    return found


def _evaluated(work: Path, _: Outcome) -> Result:
    return {("names" if name == "name" else name): column for name, column in table(work / "evaluation.csv").items()}


def _described(work: Path, _: Outcome) -> Result:
    with np.load(work / "out" / "mixtures.npz") as arrays:
        found: Result = {name: arrays[name] for name in arrays.files if name != "paths"}  # each call has a folder of its own
    rows = table(work / "out" / "nodules.csv", "described", "category", "diameter_mm")
    rows.pop("described")
    files = len(list((work / "out" / "reconstructions").glob("*.nii.gz")))
    return found | rows | {"reconstructions": files}


def _trained(work: Path, _: Outcome) -> Result:
    record = json.loads((work / "run" / "record.json").read_text())
    history = table(work / "run" / "history.csv", "train_loss", "val_loss")
    return history | {name: record[name] for name in ("train_samples", "validation_samples")}


def _printed(_: Path, outcome: Outcome) -> Result:
    return {"printed": outcome.out.splitlines()}


def _inspected(_: Path, outcome: Outcome) -> Result:
    return {"printed": [line for line in outcome.out.splitlines() if not line.startswith(("picture", "from"))]}


def _judged(work: Path, _: Outcome) -> Result:
    return _flat(json.loads((work / "out" / "judgement.json").read_text()))


def _flat(value: object, name: str = "") -> Result:
    if isinstance(value, Mapping):
        return {key: leaf for k, inner in value.items() for key, leaf in _flat(inner, f"{name}.{k}").items()}
    return {name: value}


def _scans(folder: Path) -> Result:
    """The voxels of all volumes below a folder, as hashes, and its tables."""
    found: Result = {}
    for path in sorted([*folder.rglob("*.mhd"), *folder.rglob("*.nii.gz")]):
        voxels = sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
        found[str(path.relative_to(folder))] = hashlib.sha256(voxels.tobytes()).hexdigest()[:12]
    for path in sorted(folder.rglob("*.csv")):
        found |= {f"{path.name} {name}": column for name, column in table(path).items()}
    return found


def _written(work: Path, _: Outcome) -> Result:
    return _scans(work / "out")


def _reported(work: Path, outcome: Outcome) -> Result:
    page = (work.parent / "data" / "report" / "report.md").read_text(encoding="utf-8")
    return {"page": page.splitlines(), "printed": [Path(line).name for line in outcome.out.splitlines()]}


def _exported(work: Path, _: Outcome) -> Result:
    with zipfile.ZipFile(work / "model.zip") as archive:
        names = sorted(archive.namelist())
        return {"files": names, "parameters": hashlib.sha256(archive.read("params.npz")).hexdigest()[:12]}


def _evaluate(run: str) -> Callable[[Call], Sequence[str]]:
    """The arguments of an evaluation of a shared run on the folder."""

    def arguments(call: Call) -> list[str]:
        own = ["--data.source", call.source, "--data.root", call.root]
        cut = ["--data.shape", "8", *call.cache] if run == "nodules" else []
        return ["evaluate", str(call.shared / run), *own, *cut, "--out", str(call.work / "evaluation.csv")]

    return arguments


def _train(*more: str, cached: bool) -> Callable[[Call], Sequence[str]]:
    return lambda call: [
        *("train", *more, *call.data, *SIZE, *(call.cache if cached else ()), *TINY),
        *("--workdir", str(call.work / "run")),
    ]


def _in_sweep(call: Call) -> list[str]:
    options = [*call.data, *SIZE, *call.cache, *NODULES, "--optim.batch-size", "2"]
    return ["sweep", "--dry-run", "--devices", "1", "2", *(re.sub("^--", "--run.", option) for option in options)]


def _judge(real: str, generated: str, call: Call) -> list[str]:
    options = ["--data.shape", "8", "--data.crop", "whole", *call.cache, "--out", str(call.work / "out")]
    return ["judge", real, generated, *options]


def _insert(nodules: str, scans: str, call: Call) -> list[str]:
    return ["insert", nodules, scans, "--out", str(call.work / "out"), "--size", "16", "--cache", str(call.work / "cache")]


def _generate(run: str, call: Call) -> list[str]:
    return ["generate", run, "--count", "6", "--out", str(call.work / "out")]


def _out(call: Call) -> tuple[str, ...]:
    return ("--out", str(call.work / "out"))


COMMANDS: dict[str, Command] = {
    "prepare": Command(lambda call: ["data", "prepare", *call.data, *SIZE, *call.cache], _prepared),
    "inspect": Command(
        lambda call: ["data", "inspect", "3", *call.data, *SIZE, *call.cache, "--out", str(call.work / "x.png")], _inspected
    ),
    "evaluate": Command(_evaluate("nodules"), _evaluated),
    "segment": Command(_evaluate("unet"), _evaluated),
    "train": Command(_train("--config", "quickstart", *NODULES, cached=True), _trained),
    "train unet": Command(_train("--config", "unet_quick", *UNET, cached=False), _trained),
    "augment": Command(
        lambda call: [
            *("evaluate", str(call.shared / "nodules"), "--data.augment-with", call.root, "--split", "all", *call.cache),
            *("--out", str(call.work / "evaluation.csv")),
        ],
        _evaluated,
    ),
    "describe": Command(
        lambda call: ["describe", str(call.shared / "nodules"), call.root, *_out(call), *call.cache], _described
    ),
    "sweep": Command(_in_sweep, _printed),
    "plan": Command(
        lambda call: [
            "plan",
            *call.data,
            *SIZE,
            *call.cache,
            *NODULES,
            "--stop.target",
            "0.001",
            "--workdir",
            str(call.work / "plan"),
        ],
        _printed,
    ),
    "insert": Command(lambda call: _insert(call.root, str(call.shared / "chest"), call), _written),
    "insert into": Command(lambda call: _insert(str(call.shared / "cubes"), call.root, call), _written),
    "generate into": Command(
        lambda call: [*_generate(str(call.shared / "generator"), call), "--insert-into", call.root], _written
    ),
    "judge": Command(lambda call: _judge(str(call.shared / "real.npz"), call.root, call), _judged),
    "judge real": Command(lambda call: _judge(call.root, str(call.shared / "generated"), call), _judged),
    "report": Command(lambda call: ["report", call.root], _reported),
    "evaluate run": Command(lambda call: ["evaluate", call.root, "--out", str(call.work / "evaluation.csv")], _evaluated),
    "describe with": Command(
        lambda call: ["describe", call.root, str(call.shared / "cubes"), *_out(call), *call.cache], _described
    ),
    "export": Command(lambda call: ["export", call.root, "--out", str(call.work / "model.zip")], _exported),
    "generate": Command(lambda call: _generate(call.root, call), _written),
}
"""How commands are called, by their names in the cases."""


def arguments(command: str, call: Call, options: Sequence[str] = ()) -> list[str]:
    """The command line of a command on a folder."""
    more = [option.replace("{folder}", call.root) for option in options]
    if command == "sweep":
        more = [re.sub("^--", "--run.", option) for option in more]
    return [*COMMANDS[command].arguments(call), *more]
