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

FORMATS = r"(\.nii|\.nii\.gz|\.mhd|\.mha|\.nrrd|\.npy|\.npz)$"
"""Endings of volumes."""

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
    def data(self) -> list[str]:
        """The options that name the folder, and the size of its small cubes."""
        return ["--data.source", self.source, "--data.root", self.root, "--data.shape", "8"]

    @property
    def cache(self) -> list[str]:
        """The options of the cache, which is a new one in each call."""
        return ["--data.cache", str(self.work / "cache"), "--data.workers", "1", "--data.scan-time-limit-s", "none"]

    def out(self, name: str = "out") -> list[str]:
        """The option of what is written."""
        return ["--out", str(self.work / name)]


class Command(NamedTuple):
    """A command.

    Attributes:
      arguments: its arguments on a folder.
      result: the result that it leaves in the work folder.
      needs: shared folders, by name, that it is called with.
    """

    arguments: Callable[[Call], Sequence[str]]
    result: Callable[[Path, Outcome], Result]
    needs: tuple[str, ...] = ()


def table(path: Path, *columns: str) -> Result:
    """Some columns of a CSV, by name; all of them if none are named. Rows are in order of their cells, names first."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    names = columns or tuple(rows[0])
    order = columns or sorted(names, key=lambda name: (name != "name", name))
    rows.sort(key=lambda row: [row[name] for name in order])
    return {name: [_value(row[name]) for row in rows] for name in names}


def _value(cell: str) -> object:
    try:
        return float(cell)
    except ValueError:
        return cell


def _prepared(work: Path, _: Outcome) -> Result:
    (entry,) = (path for path in (work / "cache").iterdir() if (path / "nodules.npz").is_file())
    with np.load(entry / "nodules.npz") as arrays:
        result: Result = {name: arrays[name] for name in arrays.files if name != "places"}
    if "files" in result:  # the right result may be of files in another folder, or in another format
        result["files"] = [re.sub(FORMATS, "", Path(str(file)).name, flags=re.I) for file in np.asarray(result["files"])]
    return result


def _evaluated(work: Path, _: Outcome) -> Result:
    result = {("names" if name == "name" else name): column for name, column in table(work / "evaluation.csv").items()}
    # Under another window a nodule cannot be recognised, even where its density is the same.
    return result | {"split": ["unseen" if kind == "unknown" else kind for kind in np.asarray(result["split"]).tolist()]}


def _described(work: Path, _: Outcome) -> Result:
    with np.load(work / "out" / "mixtures.npz") as arrays:
        result: Result = {name: arrays[name] for name in arrays.files if name != "paths"}  # each call has its own folder
    rows = table(work / "out" / "nodules.csv", "described", "category", "diameter_mm")
    rows.pop("described")
    return result | rows | {"reconstructions": len(list((work / "out" / "reconstructions").glob("*.nii.gz")))}


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


def _written(work: Path, _: Outcome) -> Result:
    """The voxels of all written volumes, as hashes, and the written tables."""
    result: Result = {}
    for path in sorted([*(work / "out").rglob("*.mhd"), *(work / "out").rglob("*.nii.gz")]):
        voxels = sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
        result[str(path.relative_to(work))] = hashlib.sha256(voxels.tobytes()).hexdigest()
    for path in sorted((work / "out").rglob("*.csv")):
        result |= {f"{path.name} {name}": column for name, column in table(path).items()}
    return result


def _reported(work: Path, outcome: Outcome) -> Result:
    page = (work.parent / "data" / "report" / "report.md").read_text(encoding="utf-8")
    return {"page": page.splitlines(), "printed": [Path(line).name for line in outcome.out.splitlines()]}


def _exported(work: Path, _: Outcome) -> Result:
    with zipfile.ZipFile(work / "model.zip") as archive:
        return {"files": sorted(archive.namelist()), "parameters": hashlib.sha256(archive.read("params.npz")).hexdigest()}


def _evaluate(call: Call, run: str, *options: str) -> list[str]:
    return ["evaluate", run, *options, *call.out("evaluation.csv")]


def _train(call: Call, config: str, *options: str) -> list[str]:
    return ["train", "--config", config, *options, *call.data, *TINY, "--workdir", str(call.work / "run")]


def _sweep(call: Call) -> list[str]:
    options = [*call.data, *call.cache, *NODULES, "--optim.batch-size", "2"]
    return ["sweep", "--dry-run", "--devices", "1", "2", *(re.sub("^--", "--run.", option) for option in options)]


def _plan(call: Call) -> list[str]:
    options = [*call.data, *call.cache, *NODULES, "--stop.target", "0.001"]
    return ["plan", *options, "--workdir", str(call.work / "plan")]


def _judge(call: Call, real: str, generated: str) -> list[str]:
    return ["judge", real, generated, "--data.shape", "8", "--data.crop", "whole", *call.cache, *call.out()]


def _insert(call: Call, nodules: str, scans: str) -> list[str]:
    return ["insert", nodules, scans, *call.out(), "--size", "16", "--cache", str(call.work / "cache")]


def _describe(call: Call, run: str, folder: str) -> list[str]:
    return ["describe", run, folder, *call.out(), *call.cache]


def _generate(call: Call, run: str) -> list[str]:
    return ["generate", run, "--count", "6", *call.out()]


def _of(call: Call, name: str) -> str:
    return str(call.shared / name)


COMMANDS: dict[str, Command] = {
    "prepare": Command(lambda call: ["data", "prepare", *call.data, *call.cache], _prepared),
    "inspect": Command(lambda call: ["data", "inspect", "3", *call.data, *call.cache, *call.out("x.png")], _inspected),
    "evaluate": Command(lambda call: _evaluate(call, _of(call, "nodules"), *call.data, *call.cache), _evaluated, ("nodules",)),
    "segment": Command(lambda call: _evaluate(call, _of(call, "unet"), *call.data[:4]), _evaluated, ("unet",)),
    "train": Command(lambda call: _train(call, "quickstart", *NODULES, *call.cache), _trained),
    "train unet": Command(lambda call: _train(call, "unet_quick", *UNET), _trained),
    "augment": Command(
        lambda call: _evaluate(call, _of(call, "nodules"), "--data.augment-with", call.root, "--split", "all", *call.cache),
        _evaluated,
        ("nodules",),
    ),
    "describe": Command(lambda call: _describe(call, _of(call, "nodules"), call.root), _described, ("nodules",)),
    "sweep": Command(_sweep, _printed),
    "plan": Command(_plan, _printed),
    "insert": Command(lambda call: _insert(call, call.root, _of(call, "chest")), _written, ("chest",)),
    "insert into": Command(lambda call: _insert(call, _of(call, "cubes"), call.root), _written, ("cubes",)),
    "generate into": Command(
        lambda call: [*_generate(call, _of(call, "generator")), "--insert-into", call.root], _written, ("generator",)
    ),
    "judge": Command(lambda call: _judge(call, _of(call, "real.npz"), call.root), _judged, ("real.npz",)),
    "judge real": Command(lambda call: _judge(call, call.root, _of(call, "generated")), _judged, ("generated",)),
    "report": Command(lambda call: ["report", call.root], _reported),
    "evaluate run": Command(lambda call: _evaluate(call, call.root), _evaluated),
    "describe with": Command(lambda call: _describe(call, call.root, _of(call, "cubes")), _described, ("cubes",)),
    "export": Command(lambda call: ["export", call.root, *call.out("model.zip")], _exported),
    "generate": Command(lambda call: _generate(call, call.root), _written),
}
"""How commands are called, by their names in the cases."""


def arguments(command: str, call: Call, options: Sequence[str] = ()) -> list[str]:
    """The command line of a command on a folder."""
    more = [option.replace("{folder}", call.root) for option in options]
    if command == "sweep":
        more = [re.sub("^--", "--run.", option) for option in more]
    return [*COMMANDS[command].arguments(call), *more]
