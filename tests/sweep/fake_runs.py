"""A small program in the place of a run, and sweeps of it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from gmmae.config.schema import Config, StopConfig
from gmmae.config.toml import to_toml
from gmmae.sweep import engine
from gmmae.sweep import jobs as sweep_jobs
from gmmae.sweep.display import SweepDisplay
from gmmae.sweep.grid import RunKey, SweepConfig
from gmmae.sweep.runs import RunRecord, SweepDir
from tests.waiting import locked

ROOT = Path(__file__).parent.parent.parent

# Four epochs of 20 steps, each loss made from the one before, so that an epoch computed twice or left out would show.
PROGRAM_SOURCE = r"""
import fcntl, json, os, re, resource, signal, sys, time
from pathlib import Path
from gmmae.system.files import write_text
from gmmae.training.records import Epoch, Record, read_history, to_json, write_history
from gmmae.system.stop_reasons import EXIT_CODES
from gmmae.sweep.processes import die_with_parent

GB = 2**30
jobs_done = 0


def run(what, config, *rest):
    global jobs_done
    out = Path(rest[-1])
    name = out.name if what == "train" else out.stem
    config = Path(config).read_text()
    wish = json.loads(Path(__file__).with_name("wishes.json").read_text()).get(name, "")

    def note(event):
        with Path(__file__).with_name("events.txt").open("a") as file:
            file.write(f"{event} {name}\n")

    def write_record(reason, loss, epochs):
        batch = 32 if strategy == "strong" else 32 * n
        rate = 0.00105 * (n if strategy == "linear" else 1)
        clocks = {"train_s": time.time(), "total_s": time.time()}
        write_text(out / "record.json", to_json(Record(
            run_id="0", scaling=strategy, seed=int(seed), devices=n, processes=1, device_kind="fake", oversubscribed=False,
            global_batch=batch, device_batch=batch // n, padding=0, steps_per_epoch=20, learning_rate=rate, parameters=1,
            batch_size=32, wanted_batch=batch, train_samples=640,
            validation_samples=128, target=None, virtual="simulate_devices = \"none\"" not in config, stop_reason=reason,
            data={"train samples": "some"}, epochs=epochs, final_train_loss=loss, final_val_loss=loss, clocks=clocks,
        )))

    def timings():
        asked = json.loads(Path(rest[0]).read_text())
        row = {"device_batch": 1, "median_s": 2.0, "low_s": 1.0, "high_s": 3.0}
        rows = {"train": [row | {"samples": b} for b in asked["batches"] if b != 64]}
        rows["validation"] = [row | {"samples": b} for b in asked["validation"]]
        failed = {"training of 64": "why"} if 64 in asked["batches"] else {}
        text = {"devices": 1, "device_kind": "fake", "oversubscribed": False, "parameters": 1}
        text |= {"versions": {}, "git_commit": None}
        asked["timing"] = {key: asked["timing"][key] for key in ("warmup_steps", "steps", "blocks")}
        write_text(out, json.dumps(text | rows | {"failed": failed, "timing": asked["timing"]}))

    note("start")
    note(f"process-{os.getpid()}")
    if wish == "crash":
        print("a warning")
        sys.exit("what it was")
    if wish == "bad":
        print("error: optim.batch_size must be smaller; got 9")
        return 2
    if wish == "full disk":
        print("error: workdir must stay a folder that can be written; " + "long " * 100 + ": give the same again", flush=True)
        os._exit(74)
    if wish == "full disk, also for the error":
        os._exit(74)
    if wish == "full memory" or (wish == "full memory after others" and jobs_done):
        print("error: memory must hold what is asked for")
        sys.exit(2)
    if wish == "segfault":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "time":
        timings()
        note("end")
        return 0
    held = (out / "held").open("w")
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (out / "gpu").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    while wish == "meet" and len(list(out.parent.glob("weak-*/gpu"))) < 2:
        time.sleep(0.01)
    strategy, n, seed = re.fullmatch(r"([a-z-]+)-n(\d+)-seed(\d+)", name).groups()
    n = int(n)
    rows = read_history(out / "history.csv") if (out / "history.csv").exists() else []

    def stop(*_):
        write_record("sigterm", rows[-1].val_loss, len(rows))
        note("sigterm")
        sys.exit(EXIT_CODES["sigterm"])

    for epoch in range(len(rows) + 1, 5):
        loss = (rows[-1].val_loss if rows else 1.0) / (1 + n + len(strategy))
        if wish == "diverge" and epoch == 3:
            loss = float("nan")
        rows.append(Epoch(epoch, 20 * epoch, 640 * epoch, 0.001, loss, loss, 0.0, 0.0, 0.0, 0.0, 0.0, 32))
        write_history(out / "history.csv", rows)
        (out / "checkpoints" / str(epoch)).mkdir(parents=True)
        write_record(None, loss, epoch)
        if loss != loss:
            break
        if wish == "crash once" and epoch == 2:  # the next attempt begins after it
            os.kill(os.getpid(), signal.SIGKILL)
        if wish == "hang" and epoch == 2:
            signal.signal(signal.SIGTERM, stop)
            note("hang")
            time.sleep(120)
        if wish == "slow":
            time.sleep(0.2)
    reason = "diverged" if rows[-1].val_loss != rows[-1].val_loss else "max_epochs"
    write_record("collapsed" if wish == "lie" else reason, rows[-1].val_loss, len(rows))
    if wish == "garbage":
        (out / "record.json").write_text("{")
    note("end")
    return 0 if wish == "lie" else EXIT_CODES[reason]


if sys.argv[1] != "serve":
    die_with_parent()
    sys.exit(run(*sys.argv[1:]))
requests, passed_on = os.pipe()
die_with_parent(passed_on)
for line in open(requests):
    if (request := json.loads(line)) is None:
        break
    sys.stdout.flush()
    os.dup2(os.open(request["log"], os.O_WRONLY | os.O_APPEND), 1)
    os.dup2(1, 2)
    code = run(request["command"], *request["arguments"])
    jobs_done += 1
    memory = json.loads(Path(__file__).with_name("wishes.json").read_text()).get("memory", "1")
    os.write(int(sys.argv[2]), json.dumps({"exit_code": code, "memory_bytes": float(memory) * jobs_done * GB}).encode() + b"\n")
"""


class Watch(SweepDisplay):
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.lines: list[str] = []
        self.states: dict[str, str] = {}
        self.begun: list[str] = []
        self.jobs = -1

    def start(self, config, done, computed) -> None:
        self.states = {key.name: text for key, text in done.items()}
        self.jobs = computed

    def started(self, name) -> None:
        self.begun.append(name)

    def tick(self, running) -> None:
        pass

    def ended(self, name, keys, seconds) -> None:
        self.states |= {key.name: text for key, text in keys.items()}

    def say(self, line) -> None:
        self.lines.append(line)


class Fake:
    """A sweep whose runs do as they are wished to."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "run.py"
        self.script.write_text(PROGRAM_SOURCE)
        self.root = folder / "sweep"
        self.wish({})

    def wish(self, wishes: dict[str, str]) -> None:
        self.script.with_name("wishes.json").write_text(json.dumps(wishes))

    def events(self, what: str) -> list[str]:
        path = self.script.with_name("events.txt")
        lines = path.read_text().splitlines() if path.exists() else []
        return [name for event, name in map(str.split, lines) if event == what]

    def processes(self) -> list[list[str]]:
        """The runs of each process, in their order."""
        lines = [line.split() for line in self.script.with_name("events.txt").read_text().splitlines()]
        runs: dict[str, list[str]] = {}
        for event, name in lines:
            if event.startswith("process-"):
                runs.setdefault(event, []).append(name)
        return list(runs.values())

    def forget(self) -> None:
        self.script.with_name("events.txt").unlink(missing_ok=True)

    def sweep(self, config: SweepConfig, *, display=None, **options) -> tuple[int, Watch]:
        watch = display or Watch()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep_jobs, "PROGRAM", (sys.executable, "-S", str(self.script)))
            return engine.sweep(config, self.root, watch, samples=640, **options), watch

    def start(self, config: SweepConfig) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        path = self.script.with_name("wanted.toml")
        path.write_text(to_toml(config))
        command = (sys.executable, "-c", SWEEPER, self.script, path, self.root)
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def records(self) -> dict[str, RunRecord]:
        folder = SweepDir(self.root)
        values = [json.loads(path.read_text()) for path in folder.records.glob("*.json")]
        keys = [RunKey(value["scaling"], value["devices"], value["seed"]) for value in values]
        return {record.key.name: record for record in folder.read_all(keys)}

    def orphans(self) -> list[str]:
        """Runs whose processes live: only death lets go of their lock."""
        return [path.parent.name for path in self.root.glob("runs/*/held") if locked(path)]


SWEEPER = """
import sys
from pathlib import Path
from rich.console import Console
from gmmae.sweep import engine, jobs as sweep_jobs
from gmmae.cli.arguments import read_sweep
from gmmae.sweep.display import SweepDisplay
sweep_jobs.PROGRAM = (sys.executable, "-S", sys.argv[1])
sys.exit(engine.sweep(read_sweep(Path(sys.argv[2])), Path(sys.argv[3]), SweepDisplay(Console()), samples=640))
"""


def grid(**changes) -> SweepConfig:
    """Five paths for six runs: on one device both strategies are the same."""
    run = Config(stop=StopConfig(max_epochs=4))
    plain: dict = {
        "scaling": ("weak", "linear"),
        "devices": (1, 2, 4),
        "jobs": 2,
        "grace_s": 5.0,
        "run": run,
    }
    return SweepConfig(**plain | changes)


PATHS = ["weak-n1-seed0", "weak-n2-seed0", "linear-n2-seed0", "weak-n4-seed0", "linear-n4-seed0"]
NAMES = ["linear-n1-seed0", *PATHS]


def without_clocks(records: dict[str, RunRecord]) -> dict[str, RunRecord]:
    assert all(record.record is not None for record in records.values())
    return {
        name: dataclasses.replace(record, record=dataclasses.replace(record.record, clocks={}))
        for name, record in records.items()
        if record.record is not None
    }
