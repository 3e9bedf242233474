"""What documents say to type, and the names that they put in backticks."""

import ast
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

GENERATED = ROOT / "docs" / "study.md"
"""What `python -m experiments.study` makes of its template, which stands for it here."""

OF_THE_SITE = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
"""Pages of the site in its own folder."""

PAGES = [*ROOT.glob("*.md"), *(path for path in OF_THE_SITE if path != GENERATED), ROOT / "experiments" / "study.md"]
"""Documents in Markdown."""

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

HEADS = [
    *(ROOT / "configs").rglob("*.toml"),
    *(ROOT / "experiments" / "configs").glob("*.toml"),
    *(ROOT / "launch").iterdir(),
    *(ROOT / name for name in ("Dockerfile", "apptainer.def")),
]
"""Files whose comments name the command that they are for."""

PROGRAMS = [*(ROOT / "experiments").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
"""Programs whose docstrings name their command."""

NAMES = r"python3?|gmmae|make|pip|source|sbatch|docker|apptainer|pre-commit|launch/\S+|tensorboard|unzip"
PROGRAM = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:{NAMES})(?=\s|$)")
"""The beginning of a command line."""

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


class Said(NamedTuple):
    """A piece of a file."""

    place: str  # the file, and the line in a page
    text: str


def none_of(places: Sequence[str]):
    """Fails with the places, one a line."""
    if places:
        pytest.fail("\n".join(places), pytrace=False)


def _name(path: Path):
    return str(path.relative_to(ROOT))


def _without_fences(text: str):
    """Returns a page whose fenced blocks are empty lines, so that the numbers of lines stay."""
    return FENCE.sub(lambda found: "\n" * found.group().count("\n"), text)


def blocks():
    """Yields each command line of the indented blocks of the pages; one that goes on with a backslash is one.

    A comment above a line is none.
    """
    for path in PAGES:
        lines = _without_fences(path.read_text()).splitlines()
        numbers = iter(range(len(lines)))
        for i in numbers:
            text = lines[i]
            while text.endswith("\\"):
                text = text[:-1] + lines[next(numbers)].strip()
            if text.startswith("    ") and not text.startswith("    #"):
                yield Said(f"{_name(path)}:{i + 1}", text.strip())


def notebook_commands():
    """Yields the command lines of the notebooks, without redirections. The name of a variable stands for its value."""
    code = [
        (path, "".join(cell["source"]))
        for path in NOTEBOOKS
        for cell in json.loads(path.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    for path, text in code:
        shell = text.startswith("%%bash\n")
        for line in text.removeprefix("%%bash\n").replace("\\\n", " ").splitlines():
            if shell or line.startswith("!"):
                yield Said(_name(path), re.sub(r"\{(\w+)\}", r"\1", re.split(r" [|>] ", line.removeprefix("!"))[0]))


def heads():
    """Yields the command lines in the comments at the heads of configurations and of launch files."""
    for path in HEADS:
        for line in path.read_text().splitlines():
            text = line.removeprefix("#   ")
            if text != line and PROGRAM.match(text):
                yield from (Said(_name(path), each) for each in text.split(", or "))


def docstrings():
    """Yields the command lines in the docstrings of studies and benchmarks."""
    for path in PROGRAMS:
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        for line in said.replace("\\\n", " ").splitlines():
            if re.match(r"\s*(python|make) ", line):
                yield Said(_name(path), line.strip())


def backticks():
    """Yields what stands in backticks in the pages."""
    for path in PAGES:
        text = _without_fences(path.read_text())
        for found in re.finditer(r"`([^`]+)`", text):
            yield Said(f"{_name(path)}:{text[: found.start()].count(chr(10)) + 1}", " ".join(found.group(1).split()))


def messages():
    """Yields the strings of the program, its docstrings among them."""
    for path in (ROOT / "gmmae").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield Said(f"{_name(path)}:{node.lineno}", node.value)


def links():
    """Yields the targets of the pages' links and pictures that are no addresses."""
    for path in PAGES:
        text = path.read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" not in target:
                yield Said(_name(path), target)


def words(line: str):
    """Returns the words of a command line, without comments, brackets, ellipses and what stands for further options.

    >>> words("A=1 gmmae plan [--seed 3] … [OPTIONS]  # a plan")
    ['A=1', 'gmmae', 'plan', '--seed', '3']
    """
    line = re.sub(r"\[((?:-|OPTIONS|\.\.\.)[^\[\]]*)\]", r"\1", line)
    return [word for word in shlex.split(line, comments=True) if word not in ("…", "...", "OPTIONS")]


def program(line: str):
    """Returns the words of a command line after variables, the interpreter's folder taken away.

    >>> program("JAX_NUM_CPU_DEVICES=8 .venv/bin/python train.py")
    ['python', 'train.py']
    """
    found = words(line)
    while found and re.fullmatch(r"[A-Z_]+=.*", found[0]):
        del found[0]
    return [found[0].removeprefix(".venv/bin/"), *found[1:]] if found else []
