"""A worker whose runs do as they are wished to, and sweeps of it."""

import dataclasses
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from rich.console import Console

from gmmae.config.schema import Config, StopConfig
from gmmae.config.toml import to_toml
from gmmae.sweep import engine, workers
from gmmae.sweep.display import SweepDisplay
from gmmae.sweep.grid import SweepConfig
from gmmae.sweep.runs import RunRecord, SweepDir

ROOT = Path(__file__).parent.parent.parent

# Four epochs of 20 steps, each loss made from the one before, so that an epoch computed twice or left out would show.
WORKER = r"""
import json, os, resource, signal, sys, time
from pathlib import Path
from gmmae.sweep import worker
from gmmae.sweep.runs import SweepDir
from gmmae.sweep.step_times import Timing, Timings, settings, write
from gmmae.system.errors import InputError, StorageError
from gmmae.system.files import write_text
from gmmae.training.records import Epoch, Record, read_history, to_json
from gmmae.training.run_logger import write_history

trained = 0


def note(event, name):
    with Path(__file__).with_name("events.txt").open("a") as file:
        file.write(f"{event} {name}\n")


def wish_of(name):
    wish = json.loads(Path(__file__).with_name("wishes.json").read_text()).get(name, "")
    note("start", name)
    note(f"process-{os.getpid()}", name)
    if wish == "crash":
        raise RuntimeError("what it was")
    if wish == "segfault":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    return wish


def train(config, out):
    global trained
    name, n, strategy = out.name, config.parallel.simulate_devices, config.scaling
    measured = n is None
    n = config.parallel.devices if measured else n
    trained += 1
    wish = wish_of(name)
    if wish == "bad":
        raise InputError("optim.batch_size must be smaller; got 9: lower it")
    if wish == "full disk":
        raise StorageError("workdir must stay a folder that can be written; " + "long " * 100 + ": give the same again")
    if wish == "full disk, also for the error":
        os._exit(74)
    if wish == "full memory" or (wish == "full memory after others" and trained > 1):
        raise MemoryError("no more")
    (out / "gpu").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    (out / "cpu").write_text(os.environ["JAX_NUM_CPU_DEVICES"])
    while wish == "meet" and len(list(out.parent.glob("weak-*/gpu"))) < 2:
        time.sleep(0.01)
    rows = read_history(out / "history.csv") if (out / "history.csv").exists() else []
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append("sigterm"))
    signal.signal(signal.SIGINT, lambda *_: told.append("sigint"))

    def write_record(reason):
        batch = 32 if strategy == "strong" else min(32 * n, 640)
        clocks = {"train_s": time.time(), "total_s": time.time()}
        record = Record(
            run_id="0", scaling=strategy, seed=config.seed, devices=n, processes=1, device_kind="fake", oversubscribed=False,
            global_batch=batch, device_batch=batch // n, padding=0, steps_per_epoch=20,
            learning_rate=0.00105 * (n if strategy == "linear" else 1), parameters=1, batch_size=32, wanted_batch=batch,
            train_samples=640, validation_samples=128, target=None, virtual=not measured, stop_reason=reason,
            data={"train samples": "some"}, epochs=len(rows), final_train_loss=rows[-1].val_loss if rows else None,
            final_val_loss=rows[-1].val_loss if rows else None, clocks=clocks,
        )
        write_text(out / "record.json", to_json(record))
        return record

    reason = None
    while not reason and len(rows) < config.stop.max_epochs:
        epoch = len(rows) + 1
        loss = (rows[-1].val_loss if rows else 1.0) / (1 + n + len(strategy))
        if wish == "diverge" and epoch == 3:
            loss, reason = float("nan"), "diverged"
        rows.append(Epoch(epoch, 20 * epoch, 640 * epoch, 0.001, loss, loss, 0.0, 0.0, 0.0, 0.0, 0.0, 32))
        write_history(out / "history.csv", rows)
        (out / "checkpoints" / str(epoch)).mkdir(parents=True, exist_ok=True)
        write_record(None)
        if wish == "crash once" and epoch == 2:  # the next attempt begins after it
            os.kill(os.getpid(), signal.SIGKILL)
        if wish == "hang" and epoch == 2:
            note("hang", name)
            while not told:
                time.sleep(0.01)
        if wish == "deaf" and epoch == 2:
            note("hang", name)
            time.sleep(120)
        reason = reason or (told[0] if told else None)
    record = write_record(reason or "max_epochs")
    if wish == "garbage":
        (out / "record.json").write_text("{")
    signal.signal(signal.SIGTERM, before)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    note(told[0] if told else "end", name)
    return record


def measure_times(root, devices, request):
    folder, asked = SweepDir(root), json.loads(request)
    path = folder.step_times(devices)
    worker.send_output_to(folder.log(path.stem))
    wish_of(path.stem)
    config = worker.read_sweep(folder.config)
    rows = {what: [Timing(size, 1, 2.0, 1.0, 3.0) for size in asked.get(what, ())] for what in ("training", "validation")}
    trained = [row for row in rows["training"] if row.samples != 64]
    failed = {"training of 64": "why"} if 64 in asked["training"] else {}
    path.parent.mkdir(exist_ok=True)
    times = settings(config.timing)
    write(path, Timings(devices, "fake", False, 1, trained, rows["validation"], failed, times, {}, None))
    note("end", path.stem)
    return 0


worker.measure_times = measure_times
worker.GRACE_S = 1
grown = float(json.loads(Path(__file__).with_name("wishes.json").read_text()).get("memory", "1"))
worker.resident_bytes = lambda: trained * grown * 2**30
sys.exit(worker.main(sys.argv[1:], train))
"""


class Watch(SweepDisplay):
    """A display that keeps what it is told."""

    def __init__(self):
        super().__init__(Console(quiet=True))
        self.lines: list[str] = []
        self.states: dict[str, str] = {}
        self.jobs = -1

    def start(self, ended, groups, total, at_once):
        super().start(ended, groups, total, at_once)
        self.states = {record.key.name: record.outcome for record in ended}
        self.jobs = len(groups)

    def ended(self, records):
        super().ended(records)
        self.states |= {record.key.name: record.outcome for record in records}

    def say(self, line):
        self.lines.append(line)


class Fake:
    """A sweep whose runs do as they are wished to."""

    def __init__(self, folder: Path):
        self.script = folder / "worker.py"
        self.script.write_text(WORKER)
        self.root = folder / "sweep"
        self.folder = SweepDir(self.root)
        self.program = (sys.executable, "-S", str(self.script))
        self.notes = folder / "events.txt"
        self.forget()
        self.wish({})

    def wish(self, wishes: dict[str, str]):
        self.script.with_name("wishes.json").write_text(json.dumps(wishes))

    def noted(self):
        """The runs of each kind of event, in their order."""
        runs = defaultdict(list)
        for event, name in map(str.split, self.notes.read_text().splitlines()):
            runs[event].append(name)
        return runs

    def events(self, what: str):
        return self.noted()[what]

    def processes(self):
        """The runs of each process, in their order."""
        return [names for event, names in self.noted().items() if event.startswith("process-")]

    def forget(self):
        self.notes.write_text("")

    def sweep(self, config: SweepConfig, *, display=None, **options):
        watch = display or Watch()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers, "PROGRAM", self.program)
            return engine.sweep(config, self.root, watch, samples=640, **options), watch

    def start(self, config: SweepConfig):
        """The same in a process of its own."""
        path = self.script.with_name("wanted.toml")
        path.write_text(to_toml(config))
        command = (sys.executable, "-c", SWEEPER, self.script, path, self.root)
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def records(self, config: SweepConfig | None = None):
        return {record.key.name: record for record in self.folder.read_all(config or grid())}


SWEEPER = """
import sys
from pathlib import Path
from rich.console import Console
from gmmae.sweep import engine, workers
from gmmae.sweep.grid import read_sweep
from gmmae.sweep.display import SweepDisplay
workers.PROGRAM = (sys.executable, "-S", sys.argv[1])
sys.exit(engine.sweep(read_sweep(Path(sys.argv[2])), Path(sys.argv[3]), SweepDisplay(Console()), samples=640))
"""


def grid(**changes):
    """Five paths for six runs: on one device both strategies are the same."""
    run = Config(stop=StopConfig(max_epochs=4))
    plain: dict = {"scaling": ("weak", "linear"), "devices": (1, 2, 4), "jobs": 2, "run": run}
    return SweepConfig(**plain | changes)


PATHS = ["weak-n1-seed0", "weak-n2-seed0", "linear-n2-seed0", "weak-n4-seed0", "linear-n4-seed0"]
NAMES = ["linear-n1-seed0", *PATHS]


def without_clocks(records: dict[str, RunRecord]):
    return {
        name: record._replace(record=record.record and dataclasses.replace(record.record, clocks={}))
        for name, record in records.items()
    }
