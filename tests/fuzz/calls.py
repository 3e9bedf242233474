"""Calls of commands on changed folders, and their results as plain columns."""

import csv
import json
import shutil
import signal
import subprocess
import sys
from collections import ChainMap
from contextlib import chdir

import numpy as np
import SimpleITK as sitk

from gmmae.data.extraction.prepare import load
from gmmae.data.settings import DataConfig
from tests.commands import as_words, run_gmmae

LIMIT_S = 60
PROGRAM = "import sys; from gmmae.cli.main import main; sys.exit(main())"
DATA = "--data.source {source} --data.root {root} --data.shape 8"
CACHE = "--data.cache {work}/cache --data.workers 1 --data.scan-time-limit-s none"
LAYERS = "--model.filters 3 3 --model.kernels 3 3 --model.latent-dim 8 --model.components 4"
EPOCH = (
    "--workdir {work}/run --optim.batch-size 4 --stop.max-epochs 1 --stop.target none --parallel.devices 1 "
    "--log.no-tensorboard --log.figure-epochs 0 --checkpoint.every-epochs 1"
)
COMMANDS = {
    "prepare": f"data prepare {DATA} {CACHE}",
    "inspect": f"data inspect 3 {DATA} {CACHE} --out {{work}}/x.png",
    "evaluate": f"evaluate {{nodules}} {DATA} {CACHE} --out {{work}}/evaluation.csv",
    "segment": "evaluate {unet} --data.source cubes --data.root {root} --out {work}/evaluation.csv",
    "train": f"train --config quickstart {LAYERS} {DATA} {CACHE} {EPOCH}",
    "train unet": f"train --config unet_quick --data.jitter 2 --model.features 2 {DATA} {EPOCH}",
    "augment": f"evaluate {{nodules}} --data.augment-with {{root}} --split all {CACHE} --out {{work}}/evaluation.csv",
    "describe": f"describe {{nodules}} {{root}} --out {{work}}/out {CACHE}",
    "sweep": f"sweep --dry-run --devices 1 2 {DATA} {CACHE} {LAYERS} --optim.batch-size 2",
    "plan": f"plan {DATA} {CACHE} {LAYERS} --stop.target 0.001 --workdir {{work}}/plan",
    "insert": "insert {root} {chest} --out {work}/out --size 16 --cache {work}/cache",
    "insert into": "insert {cubes} {root} --out {work}/out --size 16 --cache {work}/cache",
    "generate into": "generate {generator} --count 6 --out {work}/out --insert-into {root}",
    "judge": f"judge {{real}}/all.npz {{root}} --data.shape 8 --data.crop whole {CACHE} --out {{work}}/out",
    "judge real": f"judge {{root}} {{generated}} --data.shape 8 --data.crop whole {CACHE} --out {{work}}/out",
    "report": "report {root}",
    "evaluate run": "evaluate {root} --out {work}/evaluation.csv",
    "describe with": f"describe {{root}} {{cubes}} --out {{work}}/out {CACHE}",
    "export": "export {root} --out {work}/model.zip",
    "generate": "generate {root} --count 6 --out {work}/out",
}
"""How commands are called, by their names in the cases; `apart` behind a name is a process of its own."""
RESULTS = ("evaluation.csv", "run/history.csv", "model.zip", "out/*.npz", "out/judgement.json", "out/**/*.csv")
RESULTS += ("out/**/*.mhd", "out/**/*.nii.gz", "../data/report/report.md")
"""The files that are results. Without any, the printed lines are."""
OWN = ("place", "path", "described", "picture", "from", "train_s", "eval_s")
"""Beginnings of columns and lines that differ between calls."""
FACTS = ("values", "masks", "names", "groups", "categories", "splits", "centre_mm", "edge_mm", "diameter_mm", "filled")
"""What is compared of prepared nodules."""
ROOTS = {"npz": "{folder}/all.npz", "real": "{folder}/all.npz", "medmnist": "{folder}/nodulemnist3d.npz"}


def call(case, command, place, shared, capfd):
    """Calls a command on a changed copy of a clean folder. Returns its exit code, its output and its result."""
    folder, work = place / case.place, place / "work"
    shutil.copytree(shared[case.base], folder, symlinks=True)
    case.change(folder)
    work.mkdir()
    root = (ROOTS.get(case.base, "{folder}") if case.root is None else case.root).format(folder=folder, place=case.place)
    source = case.base if case.base in ("luna16", "medmnist") else "cubes"
    options = {key: value.format(folder=folder) if isinstance(value, str) else value for key, value in case.options.items()}
    places = ChainMap({"root": root, "source": source, "work": work}, shared)
    line = [word.format_map(places) for word in COMMANDS[command.removesuffix(" apart")].split()]
    line += [word for key, value in options.items() for word in as_words(key, value)]
    if command == "sweep":
        line = [f"--run.{word[2:]}" if word.startswith(("--data", "--model", "--optim")) else word for word in line]
    with chdir(place):
        if command.endswith("apart"):
            done = subprocess.run([sys.executable, "-c", PROGRAM, *line], capture_output=True, text=True, timeout=LIMIT_S)
            return done.returncode, done.stdout, done.stderr, {}
        capfd.readouterr()
        try:
            signal.alarm(LIMIT_S)
            code = run_gmmae(*line)
        except SystemExit as error:
            code = error.code
        finally:
            signal.alarm(0)
        out, err = capfd.readouterr()
        if code:
            return code, out, err, {}
        if command == "prepare":
            given = {key.removeprefix("data."): value for key, value in options.items() if key != "out"}
            cache = {"cache": str(work / "cache"), "workers": 1, "scan_time_limit_s": None}
            nodules = load(DataConfig(source=source, root=root, shape=8, **cache, **given), lambda line: None)
            return code, out, err, {"": in_order({name: getattr(nodules, name) for name in FACTS}, case.renamed)}
    files = sorted({path for pattern in RESULTS for path in work.glob(pattern)})
    return code, out, err, {str(path.relative_to(place)): in_order(columns(path), case.renamed) for path in files} or {"": {"out": out.splitlines()}}


def columns(path):
    """The columns of a file, or its lines, or its voxels."""
    if path.suffix in (".npz", ".zip"):
        with np.load(path) as arrays:
            return {name: arrays[name] for name in arrays.files}
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {name: [row[name] for row in rows] for name in rows[0]}
    if path.suffix == ".json":
        return leaves(json.loads(path.read_text()))
    return {"": path.read_text().splitlines() if path.suffix == ".md" else sitk.GetArrayFromImage(sitk.ReadImage(str(path)))}


def leaves(value, name=""):
    """The values of nested objects by their paths."""
    if not isinstance(value, dict):
        return {name: value}
    return {path: leaf for key, inner in value.items() for path, leaf in leaves(inner, f"{name}.{key}").items()}


def in_order(columns, renamed):
    """Sorts columns by the nodules' names; without names by a number of theirs."""
    arrays = {name: np.asarray(column) for name, column in columns.items() if not name.startswith(OWN)}
    keys = [name for name in (("loss", "diameter_mm") if renamed else ("names", "name")) if name in arrays]
    if keys and ("names" in arrays or "name" in arrays):
        order = np.argsort(arrays[keys[0]].astype(float if renamed else str), kind="stable")
        arrays = {name: column[order] if column.shape[:1] == order.shape else column for name, column in arrays.items()}
    return {name: column for name, column in arrays.items() if not (renamed and name in ("names", "name"))}


def difference(found, right, near):
    """What differs between two results, or an empty text. Another grid changes voxels, and most the border of a mask."""
    for file in found.keys() | right.keys():
        if file not in found or file not in right or found[file].keys() != right[file].keys():
            return f"only one has {file}: {found.get(file, {}).keys() ^ right.get(file, {}).keys()}"
        for name, one in found[file].items():
            two = right[file][name]
            try:
                one, two = one.astype(float), two.astype(float)
            except ValueError:
                same = np.array_equal(one, two)
            else:
                share = 0.15 if name == "dice" or "dice" in found[file] else 0.03
                tolerance = (share * np.abs(two) + 3.0 * (name == "values")) if near else 1e-5 * np.abs(two) + 1e-6
                if near and name in ("masks", "dice"):
                    same = one.shape == two.shape and np.mean(one != two) <= 0.15 * max(two.mean(), 0.01) or name == "dice"
                else:
                    same = one.shape == two.shape and np.isclose(one, two, rtol=0, atol=np.nan_to_num(tolerance), equal_nan=True).all()
            if not same:
                return f"{file} {name}: {one!s:.200} for {two!s:.200}"
    return ""
