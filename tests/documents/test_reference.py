"""The generated reference of the site is complete, and says what the code does; its pages and pictures are there."""

import csv
import re

import pytest

from docs import generate
from gmmae.cli import main
from gmmae.config.schema import flatten
from gmmae.sweep.grid import SweepConfig
from gmmae.training.records import Epoch
from gmmae.training.run_logger import write_history
from gmmae.workloads.registry import BUILT_IN, configuration
from tests.documents.programs import options
from tests.documents.reading import NOTEBOOKS, OF_THE_SITE, ROOT, none_of

FILES = {(file.written_by, file.name): file for file in generate.files()}


def test_every_key_of_a_run_and_of_a_sweep_is_listed_once():
    listed = re.findall(r"^\| `([\w.]+)` ", generate.run_keys(), re.MULTILINE)
    settings = re.findall(r"^\| `([\w.]+)` ", generate.workload_keys(), re.MULTILINE)
    assert set(listed + settings) == {key for name in BUILT_IN for key, _ in flatten(configuration(name))}
    assert len(listed) == len(set(listed))
    own = {key for key, _ in flatten(SweepConfig()) if not key.startswith("run.")}
    assert re.findall(r"^\| `([\w.]+)` ", generate.sweep_keys(), re.MULTILINE) == [
        k for k, _ in flatten(SweepConfig()) if k in own
    ]


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("optim.batch_size", "no"),
        ("scaling", "no"),
        ("stop.target", "yes"),
        ("log.tensorboard", "yes"),
        ("data.workers", "yes"),
        ("data.seed", "no"),
        ("parallel.devices", "with `strong`"),
    ],
)
def test_the_keys_that_may_change_on_resume_are_those_outside_the_identity(key, answer):
    assert generate.on_resume()[key] == answer


def test_a_row_has_type_range_default_and_help():
    row = r"^\| `optim.learning_rate` \| η for the base batch, .+ \| `0.00105` \| a number, positive \| no \|$"
    assert re.search(row, generate.run_keys(), re.MULTILINE)
    assert "| `cosine_epochs` |" not in generate.run_keys()
    assert "| `auto` | one of train, validation, test, all, or auto |" in generate.commands()
    assert re.search(r"^\| `RUN` \| .+ \| required \| a path \|$", generate.commands(), re.MULTILINE)


WORDS = {"report": "x", "generate": "x", "insert": "x x", "judge": "x x", "data inspect": "x", "data synth": "x"}
"""Positional arguments that the parsers want before they list their options."""


@pytest.mark.parametrize("command", [*main.COMMANDS, "plan --curves"])
def test_every_option_of_a_command_is_listed(command):
    text = generate.commands().partition(f"## `gmmae {command}`\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(--[\w-]+)` ", text, re.MULTILINE))
    own = options(["gmmae", *command.split(), *WORDS.get(command, "").split()])
    assert listed <= own
    without_sections = {option for option in own if "." not in option and not option.startswith(("--no-", "-h", "--help"))}
    of_a_run = {f"--{key.replace('_', '-')}" for name in BUILT_IN for key, _ in flatten(configuration(name)) if "." not in key}
    of_a_sweep = {f"--{key.replace('_', '-')}" for key, _ in flatten(SweepConfig())} if command == "sweep" else set()
    positional = {"--root", "--run", "--runs", "--files", "--nodules", "--scans", "--real", "--generated", "--which"}
    assert without_sections - listed <= of_a_run | of_a_sweep | positional


def test_no_place_of_this_machine_is_listed():
    assert not [name for name, part in generate.PARTS.items() if str(ROOT) in part()]


def test_every_key_option_and_column_has_a_meaning():
    parts = {name: part().splitlines() for name, part in generate.PARTS.items()}
    rows = [(name, line) for name, lines in parts.items() for line in lines if line.startswith("| `")]
    assert len(rows) > 300
    place = {"file_tables": 3, "exit_codes": 2}  # the column of the meaning; that of keys and options is the second
    none_of([row for name, row in rows if not re.split(r"(?<!\\)\|", row)[place.get(name, 2)].strip()])


def test_the_columns_of_a_history_are_those_that_a_run_writes(tmp_path):
    row = Epoch(1, 2, 3, 0.1, 0.2, 0.3, 0, 0, 0, 0, 0, 8, {"dice": 0.5})
    write_history(tmp_path / "history.csv", [row], ["dice"])
    with (tmp_path / "history.csv").open() as file:
        written = next(csv.reader(file))
    assert written == [name.replace("NAME", "dice") for name in FILES["train", "history.csv"].columns]


def test_every_page_and_notebook_is_in_the_tree_of_the_site():
    """A folder with an index of its own has its pages there."""
    pages = [path for path in OF_THE_SITE + NOTEBOOKS if path != ROOT / "docs" / "index.md"]
    missing = [
        path for path in pages if not re.search(rf"^{_entry(path)}$", _index(path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    none_of([f"{_index(path).relative_to(ROOT)} must list {path.relative_to(ROOT)} in a toctree" for path in missing])


def _index(path):
    own = path.parent / "index.md"
    return own if own.exists() and own != path else ROOT / "docs" / "index.md"


def _entry(path):
    return str(path.relative_to(_index(path).parent).with_suffix(""))
