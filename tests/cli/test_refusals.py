"""What commands refuse: one line that names it, exit code 2, and nothing written. Tests of a command have the rest."""

import pytest

from gmmae.config.toml import to_toml
from gmmae.sweep.grid import SweepConfig
from tests.commands import refusal
from tests.small import small

SWEEP = SweepConfig(scaling=("strong", "weak"), devices=(1, 3), run=small(parallel__devices="all"))
TRAIN = "train --config TRAIN --workdir OUT"
TABLE = {
    f"{TRAIN} --parallel.devices 64": "parallel.devices must be at most the number of devices",
    f"{TRAIN} --parallel.devices 8 --optim.batch-size 4": "parallel.devices must be at most the samples in a step, 4; got 8",
    "train --config TRAIN --workdir OTHER": "where seed was 7, now 0",
    "train --config TRAIN --workdir DAMAGED": "checkpoints/2 must be readable",
    "train --config TRAIN --workdir BARE": "BARE/config.toml must be TOML, the configuration of the run there; got",
    "train --config TRAIN --workdir /proc/run": "workdir must be a folder that can be written; got /proc/run",
    "trian": "must be one of train, sweep, report, plan, ",
    "data cut": "data prepare, data inspect, data lidc, data synth; got 'data cut'",
    "data prepare": "data.source must be one of luna16, cubes",
    "data prepare --data.source luna16": "data.root must be the folder of the .mhd scans",
    "data synth scans --nodules 3 2": "--nodules must be two counts, ",
    "sweep --config SWEEP --dry-run --devices 9": "must be at most the samples in a step of the strategy strong, 8; got (9,)",
    "sweep --config SWEEP --clusters k81": "--clusters must be a TOML file or one of a100, ",
    "sweep --config SWEEP --workdir /proc/sweep": "workdir must be a folder that can be written; got /proc/sweep",
    "sweep --config SWEEP --workdir LONG": "must be of names that the file system takes",
    "plan --stop.target 1 --workdir LONG": "must be of names that the file system takes",
    "train --workload LONG.py": "must be of names that the file system takes",
    "plan --curves LOOP": "LOOP",
    "report .": "FOLDER must be the work directory of a sweep; got ., which has no sweep.toml",
    "plan --workdir OUT --clusters nowhere": "--clusters must be a TOML file or one of",
    "plan --workdir OUT --clusters k80_1gbe k80_1gbe": "clusters must be of different names; got",
    "plan --workdir OUT --stop.target none": "stop.target must be given",
    "plan --workdir OUT --optim.batch-size 50 --data.samples 40": "optim.batch_size must be at most the 34 training samples",
    "measure-cluster --out OUT --sizes 1024": "two or more different multiples of 4, up to 1073741824; got (1024,)",
    "measure-cluster --out OUT --sizes 1024 1023": "two or more different multiples of 4",
    "measure-cluster --out OUT --name=": "--name must be text, not empty, or none",
    "measure-cluster --out OUT --distributed.process-id 1": "coordinator, num_processes and process_id must all be given",
    "measure-cluster --out OUT/mine.toml": "--out must be a file that can be written",
    "evaluate nowhere": "the first argument must be the work directory of a run; got nowhere, which has no config.toml",
    "evaluate --split all": "the first argument must be the work directory of a run; got --split, which has no config.toml",
    "evaluate RUN --split some": "--split must be one of train, validation, test, all, or auto; got 'some'",
    "evaluate RUN --split test": "--split test needs data that have a test set of their own",
    "evaluate RUN --model.latent-dim 5": "must hold the model of this configuration; its arrays have other shapes",
    "evaluate RUN --out OUT/evaluation.csv": "--out must be a file that can be written; got ",
    "export RUN --out OUT/model.zip": "--out must be a file that can be written; got ",
}


@pytest.mark.parametrize("words", TABLE)
def test_bad_input_is_one_line_and_exit_code_2(words, tmp_path, capsys, request):
    known = {"OUT": tmp_path / "out", "LONG": "x" * 300, "LONG.py": "x" * 300 + ".py"}
    for name, config in {
        "TRAIN": small(stop__max_epochs=2),
        "SWEEP": SWEEP,
        "OTHER/config": small(seed=7),
        "DAMAGED/config": small(),
    }.items():
        known[name] = tmp_path / f"{name}.toml"
        known[name].parent.mkdir(exist_ok=True)
        known[name].write_text(to_toml(config))
    for name in ("OTHER", "DAMAGED", "BARE"):
        known[name] = tmp_path / name
        (known[name] / "checkpoints" / "2" / "state").mkdir(parents=True)
    (known["DAMAGED"] / "checkpoints" / "2" / "_CHECKPOINT_METADATA").write_text("{}")
    (tmp_path / "LOOP").symlink_to("LOOP")
    known["LOOP"] = tmp_path / "LOOP"
    if "RUN" in words:
        known["RUN"] = request.getfixturevalue("mixture_run").folder
    given = (word.partition("/") for word in words.split())
    assert TABLE[words] in refusal(capsys, *(f"{known.get(head, head)}{slash}{rest}" for head, slash, rest in given))
    assert not list(known["OUT"].glob("[!.]*"))  # a plan leaves its lock
