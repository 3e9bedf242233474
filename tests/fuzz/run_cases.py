"""Damaged work directories of runs and of sweeps."""

import json
from functools import partial
from pathlib import Path

from tests.faults.damages import DAMAGES
from tests.fuzz.cases import either, reads, refused, table
from tests.fuzz.changes import APPLE_DOUBLE, content, gone, instead, stored, unchanged

CONFIG, RECORD, CHECKPOINTS, HISTORY = "config.toml", "record.json", "checkpoints", "history.csv"
SWEEP, TIMES, CELL = "sweep.toml", "step_times/step-times-n1.json", "runs/strong-n1-seed0"
TEXTS = {"text": "not JSON", "zeros": bytes(99), "not UTF-8": b'{"a": "\xff"}', "an unknown key": "wrkload = 1\n"}
JSON = TEXTS | {
    "0 bytes": "",
    "an empty object": "{}",
    "a list": "[]",
    "a number": "3",
    "null": "null",
    "cut": '{"run_id": "0123", "scaling": "str',
    "deep": "[" * 100_000,
}


def texts(name, texts):
    """Other contents of a file."""
    return {f"{name}: {what}": content(name, text) for what, text in texts.items()}


def kinds(name):
    """A file or a folder that is missing, or is the other."""
    other = Path.mkdir if "." in name else Path.touch
    return {f"{name}: missing": gone(name), f"{name}: another kind": instead(name, other)}


def edited(name, **values):
    """A JSON file with other values."""
    return stored(name, lambda data: json.dumps(json.loads(data) | values))


def in_config(old, new):
    """A configuration in which a text is replaced."""
    return stored(CONFIG, lambda data: data.replace(old, new))


def newest(function):
    """Changes the newest checkpoint."""
    return lambda folder: function(max((folder / CHECKPOINTS).iterdir(), key=lambda path: int(path.name)))


def spoil(checkpoint):
    """Sets bytes in the middle of what is stored of the arrays to 255."""
    for path in checkpoint.glob("arrays/ocdbt.process_*/d/*"):
        data = path.read_bytes()
        half = len(data) // 2
        path.write_bytes(data[: half // 2] + b"\xff" * half + data[half // 2 + half :])


def runs(expect, changes, commands="evaluate run|describe with|export"):
    """Cases of a run for its readers in turn, and of a generator."""
    return table("nodules", "run", commands, expect, changes) + table("generator", "generator", "generate", expect, changes)


OTHER = {"another workload": content(CONFIG, 'workload = "segmentation"\n')}
sweeps = partial(table, "sweep", "sweep", "report")
CASES = [
    *runs(
        refused(),
        {
            **texts(CONFIG, {what: text for what, text in JSON.items() if what not in ("0 bytes", "an empty object")}),
            **texts(RECORD, JSON),
            **kinds(CONFIG),
            **kinds(RECORD),
            **kinds(CHECKPOINTS),
            "wrkload: an unknown key": content(CONFIG, 'wrkload = "nodules"\n'),
            "size: of the wrong type": in_config(b"size = 8", b'size = "eight"'),
            "data.root: with a NUL": in_config(b'root = "none"', b'root = "a\\u0000b"'),
            "nowhere.py: another workload": content(CONFIG, 'workload = "nowhere.py"\n'),
            "another model": in_config(b"latent_dim = 8", b"latent_dim = 9"),
            f"{RECORD}: a field missing": stored(RECORD, lambda data: data.replace(b'"seed"', b'"other"')),
            f"{CHECKPOINTS}: empty": instead(CHECKPOINTS, Path.mkdir),
        },
    ),
    *runs(refused(), OTHER, "evaluate run|export"),  # the other workload has no options of the data's cache
    *runs(either(RECORD), {"a number as text": edited(RECORD, best_epoch="one")}),
    *runs(
        reads(),
        {
            "a field more": edited(RECORD, newer=1),
            "no history": gone(HISTORY),
            **texts(HISTORY, {"0 bytes": "", "zeros": bytes(99)}),
            **texts(f"{CHECKPOINTS}/.DS_Store", {"beside": ""}),
            **texts("._config.toml", {"beside": APPLE_DOUBLE}),
        },
    ),
    *table(
        "nodules",
        "checkpoint",
        "evaluate run apart|describe with apart|export apart",
        refused(CHECKPOINTS),
        {what: newest(damage) for what, damage in DAMAGES.items()} | {"bytes of the arrays changed": newest(spoil)},
    ),
    *table("nodules", "generator", "generate", refused("lattice"), {"of another model": unchanged}),
    *table("unet", "run", "generate", refused(), {"of a segmentation": unchanged}),
    *sweeps(
        refused(),
        {
            **texts(f"{CELL}/{RECORD}", JSON),
            **texts(TIMES, JSON),
            **texts("plan.json", JSON),
            **texts(SWEEP, TEXTS),
            **kinds(SWEEP),
            f"{CELL}: numbers as text": edited(f"{CELL}/{RECORD}", epochs="ten"),
            f"{CELL}: no clocks": edited(f"{CELL}/{RECORD}", clocks=None),
            f"{CELL}: NaN seconds": edited(f"{CELL}/{RECORD}", clocks={"train_s": float("nan"), "eval_s": 1.0}),
            f"{CELL}: text for a list of stages": edited(f"{CELL}/{RECORD}", growth="ten"),
            f"{TIMES}: NaN": edited(TIMES, train=[[8, 8, float("nan"), 1, 1]]),
        },
    ),
    *sweeps(either(CELL), {"the record of another cell": edited(f"{CELL}/{RECORD}", scaling="weak", seed=1)}),
    *sweeps(
        either(HISTORY, like=gone(f"{CELL}/{HISTORY}")),
        texts(f"{CELL}/{HISTORY}", TEXTS | {"0 bytes": "", "words": "epoch,steps,samples\none,two,three\n"}),
    ),
    *sweeps(
        reads(),
        texts(f"{CELL}/._{RECORD}", {"beside": APPLE_DOUBLE})
        | texts("runs/strong-n64-seed0/record.json", {"not in the grid": "{}"}),
    ),
]
for name in (f"{CELL}/{RECORD}", "runs", "step_times"):
    CASES += sweeps(reads(gone(name)), {f"no {name}": gone(name)})
