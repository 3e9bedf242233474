"""Every command line of the documents goes through the parser of its program."""

import re
from pathlib import Path
from unittest import mock

import pytest

from gmmae.cli import main
from gmmae.scaling.strategies import STRATEGIES
from gmmae.workloads import registry
from tests.commands import as_words
from tests.documents.programs import OTHERS, Wrong, as_a_run, check, modules, named, options
from tests.documents.reading import (
    PROGRAM,
    ROOT,
    backticks,
    blocks,
    docstrings,
    heads,
    messages,
    none_of,
    notebook_commands,
    program,
)

FOREIGN = re.compile(r"--(xla_.*|array|format|init|logdir|name|network|no-name)$")
"""Options of XLA, Slurm, TensorBoard and Docker, and what stands for any option."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder like the project's root, with the files of a user's that the documents speak of."""
    for path in ROOT.iterdir():
        if path.name not in ("runs", ".git"):
            (tmp_path / path.name).symlink_to(path)
    guide = (ROOT / "docs" / "workload.md").read_text()
    (tmp_path / "mine.py").write_text(guide.split("```python\n")[1].partition("```")[0])
    (tmp_path / "my_sweep.toml").write_text('[run]\nworkload = "mine.py"\n')
    monkeypatch.chdir(tmp_path)
    registry.load.cache_clear()
    with mock.patch.dict(STRATEGIES):  # files of workloads add theirs when they are loaded
        yield
    registry.load.cache_clear()


@pytest.mark.parametrize("source", [blocks, heads, docstrings, notebook_commands])
def test_every_command_line_is_parsed_by_its_program(place, source):
    as_a_run(Path("run"))  # which an earlier cell of a notebook has made
    lines, wrong = list(source()), []
    assert len(lines) >= 5
    for said in lines:
        try:
            check(program(said.text))
        except (Wrong, ValueError) as error:
            wrong.append(f"{said.place}: {said.text}\n    {error}")
    none_of(wrong)


def test_the_readme_asks_a_cpu_for_virtual_devices_only():
    several = re.compile(r"--parallel\.devices ([2-9]|\d\d)")
    lines = [said.text for said in blocks() if said.place.startswith("README.md") and several.search(said.text)]
    assert lines
    assert all(line.startswith("JAX_NUM_CPU_DEVICES=") for line in lines)


def asked(text):
    """The options in a piece of text."""
    return re.findall(r"(?<![\w-])--[a-z][\w.-]*", text)


@pytest.fixture(scope="module")
def known():
    """All options of the programs that the documents name, of all commands, and of `gmmae` itself."""
    commands = [["gmmae", *name.split()] for name in (*main.COMMANDS, "plan --curves")]
    return {"--version"}.union(*map(options, [*commands, *(["python", "-m", name] for name in modules())]))


def test_commands_within_sentences_have_the_options_that_they_name(place):
    """They need not be whole: `gmmae report --plan`."""
    found = []
    for said in backticks():
        words = program(said.text) if PROGRAM.match(said.text) else []
        if len(words) < 2 or words[0] in OTHERS or words[1:3] == ["-m", "pytest"]:
            continue
        try:
            if words[0] in ("make", "pip", "sbatch") or words[0].startswith("launch/"):
                check(words)
            elif asked(said.text):
                have = options(words)
                found += [f"{said.place}: {said.text}: no {option}" for option in asked(said.text) if option not in have]
            else:
                named(words)
        except Wrong as error:
            found.append(f"{said.place}: {said.text}: {error}")
    none_of(found)


def test_switches_within_sentences_have_no_value(known):
    pairs = [said for said in backticks() if re.match(r"--\S+ [^-]", said.text)]
    assert len(pairs) >= 10
    none_of([f"{said.place}: {said.text}" for said in pairs if as_words(said.text.split()[0][2:], False)[0] in known])


@pytest.mark.parametrize(
    ("pieces", "holds_options", "least"),
    [(backticks, lambda text: text.startswith("--"), 30), (messages, lambda text: " " in text, 50)],
    ids=["sentences of the documents", "messages of the program"],
)
def test_options_within_sentences_exist(known, pieces, holds_options, least):
    found = [(said.place, option.rstrip(".-")) for said in pieces() if holds_options(said.text) for option in asked(said.text)]
    assert len(found) >= least
    none_of([f"{place}: {option}" for place, option in found if option not in known and not FOREIGN.match(option)])
