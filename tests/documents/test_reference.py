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
from tests.documents.reading import none_of

FILES = {(file.written_by, file.name): file for file in generate.files()}


def test_a_row_has_type_range_default_and_help():
    row = r"^\| `optim.learning_rate` \| η for the base batch, .+ \| `0.00105` \| a number, positive \| no \|$"
    assert re.search(row, generate.run_keys(), re.MULTILINE)
    assert "| `cosine_epochs` |" not in generate.run_keys()
    assert "| `auto` | one of train, validation, test, all, or auto |" in generate.commands()
    assert re.search(r"^\| `RUN` \| .+ \| required \| a path \|$", generate.commands(), re.MULTILINE)


KEYS = {key for name in BUILT_IN for key, _ in flatten(configuration(name))}
OF_SWEEPS = [key for key, _ in flatten(SweepConfig()) if not key.startswith("run.")]


def first_cells(text):
    return re.findall(r"^\| `([\w.-]+)` ", text, re.MULTILINE)


def test_every_key_of_a_run_and_of_a_sweep_is_listed_once():
    assert sorted(first_cells(generate.run_keys())) == sorted(set(first_cells(generate.run_keys())))
    assert {*first_cells(generate.run_keys()), *first_cells(generate.workload_keys())} == KEYS
    assert first_cells(generate.sweep_keys()) == OF_SWEEPS


@pytest.mark.parametrize("command", [*main.COMMANDS, "plan --curves"])
def test_every_option_of_a_command_is_listed(command):
    text = generate.commands().partition(f"## `gmmae {command}`\n")[2].partition("\n## ")[0]
    found, own = set(first_cells(text)), options(["gmmae", *command.split()])
    assert {option for option in found if option.startswith("--")} <= own
    elsewhere = {f"--{key.replace('_', '-')}" for key in (*KEYS, *(OF_SWEEPS if command == "sweep" else ()))}
    positional = {
        "--folder",
        "--root",
        "--run",
        "--runs",
        "--files",
        "--nodules",
        "--scans",
        "--real",
        "--generated",
        "--which",
    }
    assert not {option for option in own - found - elsewhere - positional if not re.search(r"\.|^--no-|^-h|^--help$", option)}


def test_every_key_option_and_column_has_a_meaning():
    parts = {name: part().splitlines() for name, part in generate.PARTS.items()}
    rows = [(name, line) for name, lines in parts.items() for line in lines if line.startswith("| `")]
    assert len(rows) > 300
    place = {"file_tables": 3, "exit_codes": 2}  # the column of the meaning; that of keys and options is the second
    none_of([row for name, row in rows if not re.split(r"(?<!\\)\|", row)[place.get(name, 2)].strip()])


def test_the_columns_of_a_history_are_those_that_a_run_writes(tmp_path):
    row = Epoch(1, 2, 3, 0.1, 0.2, 0.3, 0, 0, 0, 0, 0, 8, metrics={"dice": 0.5})
    write_history(tmp_path / "history.csv", [row], ["dice"])
    with (tmp_path / "history.csv").open() as file:
        written = next(csv.reader(file))
    assert written == [name.replace("NAME", "dice") for name in FILES["train", "history.csv"].columns]
