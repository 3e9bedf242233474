"""Calls of commands on changed folders, and their results as plain columns."""

import shutil
import signal
import subprocess
import sys
from collections import ChainMap
from contextlib import chdir, suppress
from typing import Any

import numpy as np
import SimpleITK as sitk

from gmmae.data.extraction.prepare import load
from gmmae.data.settings import DataConfig
from tests.commands import as_words, rows, run_gmmae

LIMIT_S = 300
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
    "sweep": "sweep --dry-run --devices 1 2 " + f"{DATA} {CACHE} {LAYERS} --optim.batch-size 2".replace("--", "--run."),
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
OWN = (
    "place",
    "path",
    "file",
    "columns",
    "described",
    "picture",
    "from",
    "compile_s",
    "train_s",
    "eval_s",
    "checkpoint_s",
    "total_s",
)
"""Beginnings of columns and lines that differ between calls."""
NEVER_THE_USERS = {"name", "split", "group", "loss", "dice", "mass"}
"""Columns that a result must have. The others may be the user's, of which a changed table has more or fewer."""
FACTS = ("values", "masks", "names", "groups", "categories", "centre_mm", "edge_mm", "diameter_mm", "filled")
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
    words = [word.format_map(places) for word in COMMANDS[command.removesuffix(" apart")].split()]
    words += [word for key, value in options.items() for word in as_words("run." * (command == "sweep") + key, value)]
    with chdir(place):
        if command.endswith(" apart"):
            done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=LIMIT_S)
            return done.returncode, done.stdout, done.stderr, {}
        capfd.readouterr()
        signal.alarm(LIMIT_S)
        try:
            code = run_gmmae(*words)
        except SystemExit as error:
            code = error.code
        signal.alarm(0)
        out, err = capfd.readouterr()
        results = {str(path)[len(str(work)) :]: columns(path) for pattern in RESULTS for path in work.glob(pattern)}
        if command == "prepare" and not code:
            given: dict[str, Any] = {key.removeprefix("data."): value for key, value in options.items() if key != "out"}
            given |= {"cache": str(work / "cache"), "workers": 1, "scan_time_limit_s": None}
            nodules = load(DataConfig(source=source, root=root, shape=8, **given), lambda line: None)
            results = {"": {"splits": nodules.table["split"], **{name: getattr(nodules, name) for name in FACTS}}}
    results = results or {"": {"": [line for line in out.splitlines() if not line.startswith(OWN)]}}
    if case.renamed:  # reconstructions are named as their nodules are
        results = {file: found for file, found in results.items() if "/reconstructions/" not in file}
    return code, out, err, {file: in_order(found, case.renamed) for file, found in results.items()}


def columns(path):
    """The columns of a file, or its lines, or its voxels."""
    if path.suffix in (".npz", ".zip"):
        with np.load(path) as arrays:
            return {name: array for name, array in arrays.items() if not name.endswith(".stablehlo")}
    if path.suffix == ".csv":
        cells = rows(path)
        # Under another window a nodule cannot be recognised, even where its density is the same.
        return {name: [row[name].replace("unknown", "unseen") for row in cells] for name in cells[0]}
    return {
        "": path.read_text().splitlines() if path.suffix in (".md", ".json") else sitk.GetArrayFromImage(sitk.ReadImage(path))
    }


def in_order(columns, renamed):
    """Returns columns as numbers where they are, sorted by the nodules' names; or without names by a number of theirs."""
    arrays = {name: np.asarray(column) for name, column in columns.items() if not name.startswith(OWN)}
    for name, array in arrays.items():
        with suppress(ValueError, TypeError):
            arrays[name] = array.astype(float)
    named = [name for name in ("names", "name") if name in arrays]
    if keys := [name for name in (("loss", "diameter_mm") if renamed else named) if named and name in arrays]:
        order = np.argsort(arrays[keys[0]], kind="stable")
        arrays = {
            name: array[order] if len(array.shape) and len(array) == len(order) else array for name, array in arrays.items()
        }
    return {name: array for name, array in arrays.items() if not (renamed and name in named)}


def difference(found, right, near):
    """Returns what differs between two results, or an empty text.

    Another grid changes values by rounding, and masks at their borders, on which all numbers of a segmentation hang.
    """
    for file in found | right:
        one, two = found.get(file, {}), right.get(file, {})
        names = one.keys() & two.keys()
        if missing := one.keys() ^ two.keys() if not file.endswith(".csv") else (one.keys() ^ two.keys()) & NEVER_THE_USERS:
            return f"only one has {missing} of {file}"
        for name in (name for name in names if not name.startswith("csv_")):
            x, y = one[name], two[name]
            if x.shape != y.shape or not {x.dtype.kind, y.dtype.kind} <= {*"biuf"} or "f" not in x.dtype.kind + y.dtype.kind:
                same = np.array_equal(x, y)
            elif near and (name == "masks" or "dice" in one):
                same = name == "dice" or not np.abs(x - y).mean() > 0.15 * np.abs(y).mean()
            else:
                same = np.allclose(x, y, *((0.03, 3 * (name == "values") + 1e-6) if near else (1e-5, 1e-6)), equal_nan=True)
            if not same:
                return f"{file} {name}: {x!s:.200} for {y!s:.200}"
    return ""
