"""Every command line of the documents goes through the parser of its program."""

import re
from pathlib import Path
from unittest import mock

import pytest

from gmmae.scaling.strategies import STRATEGIES
from gmmae.workloads import registry
from tests.commands import as_words
from tests.documents.programs import OTHERS, Wrong, as_a_run, check, modules, named, options
from tests.documents.reading import (
    PROGRAM,
    ROOT,
    Said,
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

DECIDING = {"--workload", "--curves"}
"""Options that decide which others there are."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder like the project's root, with the files of a user's that the documents speak of."""
    for path in ROOT.iterdir():
        if path.name not in ("runs", ".git"):
            (tmp_path / path.name).symlink_to(path)
    guide = (ROOT / "docs" / "workload.md").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(guide.split("```python\n")[1].partition("```")[0], encoding="utf-8")
    (tmp_path / "my_sweep.toml").write_text('[run]\nworkload = "mine.py"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    registry.load.cache_clear()
    with mock.patch.dict(STRATEGIES):  # files of workloads add theirs when they are loaded
        yield
    registry.load.cache_clear()


def wrong(lines):
    """The command lines that are refused, each with its place and why."""
    found = []
    for said in lines:
        try:
            check(program(said.text))
        except (Wrong, ValueError) as error:
            found.append(f"{said.place}: {said.text}\n    {error}")
    return found


@pytest.mark.parametrize("source", [blocks, heads, docstrings])
def test_every_command_line_is_parsed_by_its_program(place, source):
    lines = list(source())
    assert len(lines) >= 10
    none_of(wrong(lines))


def test_every_command_line_of_a_notebook_is_parsed_by_its_program(place):
    as_a_run(Path("run"))  # which an earlier cell has made
    lines = list(notebook_commands())
    assert lines
    none_of(wrong(lines))


def test_the_readme_activates_the_environment_before_it_uses_it():
    lines = [said.text for said in blocks() if said.place.startswith("README.md")]
    first = next(i for i, line in enumerate(lines) if program(line)[0] in ("python", "gmmae", "pip"))
    assert program(lines[first - 1]) == ["source", ".venv/bin/activate"]


def test_the_readme_asks_a_cpu_for_virtual_devices_only():
    asked = re.compile(r"--parallel\.devices ([2-9]|\d\d)")
    lines = [said.text for said in blocks() if said.place.startswith("README.md") and asked.search(said.text)]
    assert lines
    assert [line for line in lines if not line.startswith("JAX_NUM_CPU_DEVICES=")] == []


def asked(text):
    """The options in a piece of text."""
    return re.findall(r"(?<![\w-])--[a-z][\w.-]*", text)


@pytest.fixture(scope="module")
def known():
    """All options of the programs that the documents name, of all commands, and of `gmmae` itself."""
    commands = ["train", "train --workload segmentation", "sweep", "report x", "data prepare", "data inspect x"]
    commands += [
        "plan",
        "plan --curves",
        "measure-cluster",
        "evaluate",
        "describe",
        "classify",
        "export",
        "generate x",
        "insert x x",
    ]
    commands += ["judge x x", "data lidc x", "data synth x"]
    programs = [f"gmmae {command}" for command in commands]
    programs += [f"python -m {name}" for name in modules()]
    return {"--version"}.union(*(options(program(each)) for each in programs))


def test_commands_within_sentences_have_the_options_that_they_name(place, known):
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
                first = next(i for i, word in enumerate(words) if word.startswith("--"))
                have = options([*words[:first], *(words if DECIDING & set(words) else [])[first:]])
                found += [f"{said.place}: {said.text}: no {option}" for option in asked(said.text) if option not in have]
            else:
                named(words)
        except Wrong as error:
            found.append(f"{said.place}: {said.text}: {error}")
    none_of(found)


def test_switches_within_sentences_have_no_value(known):
    pairs = [(said, *said.text.split()[:2]) for said in backticks() if re.match(r"--\S+ [^-]", said.text)]
    assert len(pairs) >= 10
    none_of([f"{said.place}: {said.text}" for said, option, _ in pairs if as_words(option[2:], False)[0] in known])


@pytest.mark.parametrize(
    ("pieces", "holds_options", "least"),
    [(backticks, lambda text: text.startswith("--"), 30), (messages, lambda text: " " in text, 50)],
    ids=["sentences of the documents", "messages of the program"],
)
def test_options_within_sentences_exist(known, pieces, holds_options, least):
    found = [(said.place, option.rstrip(".-")) for said in pieces() if holds_options(said.text) for option in asked(said.text)]
    assert len(found) >= least
    none_of([f"{place}: {option}" for place, option in found if option not in known and not FOREIGN.match(option)])


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("gmmae plan --log.tensorboard True", "Unrecognized options: True"),
        ("gmmae plan --scale-comput 3", "--scale-compute "),
        ("gmmae evaluate runs/one --split nothing", "'nothing'"),
        ("gmmae paln", "must be one of train, sweep"),
        ("python train.py --scaling fast", "scaling must be one of"),
        ("python sweep.py --config sweep_quick --dry", "--dry"),
        ("python -m experiments.plan --outt there", "--outt"),
        ("python -m experiments.segmentation --data a --out b --stop.epochs 3", "--stop.epochs"),
        ("python -m experiments.nothing", "no module experiments.nothing"),
        ("python experiments/curves_pytorch.py --seed 1", "has no options"),
        ("make trian", "no target trian"),
        ('make bench BENCH="--part peers"', "--part"),
        ("pip install -e '.[gpu]'", "no extra gpu"),
        ("sbatch --nodes 2 launch/slurm.sbatch --confg paper", "--confg"),
        ("launch/hosts.sh a,b --config paper", "-- is missing"),
        ("docker build --build-arg EXTRA=cuda11 -t gmmae .", "no extra cuda11"),
        ("docker run --rm gmmae train --workdirr x", "--workdirr"),
        ("apptainer build gmmae.sif gmmae.def", "no file gmmae.def"),
        ("horovodrun -np 2", "no program of that name"),
    ],
)
def test_a_wrong_command_line_is_found(place, line, part):
    [message] = wrong([Said("here", line)])
    assert part in message
