"""The size of the project, which may only fall: a commit that deletes lowers its lines, and one that adds raises its own.

The message of a commit that raises a line says what the feature is worth. Tokens are those of code, without comments,
docstrings, line ends and indentation, so joined lines and short names gain nothing.
"""

import ast
import io
import json
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest

from tests.launched import python

ROOT = Path(__file__).parent.parent
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
SLACK = 1.02
"""How far above its folder's size a line may lie."""

MOST = json.loads((Path(__file__).parent / "sizes.json").read_text())
"""The most tokens of each package, and of the tests of each."""

MOST_FILES = 10
"""The most files of the package that an epoch crosses on the host."""

EPOCH = """
import os, runpy, sys, threading
from pathlib import Path

history, files = Path(sys.argv[-1]) / "history.csv", set()

def profile(frame, event, _):
    if event == "call" and f"{os.sep}gmmae{os.sep}" in (name := frame.f_code.co_filename) and name not in files:
        if history.is_file() and 2 <= history.read_bytes().count(b"\\n") < 4:
            files.add(name)

threading.setprofile(profile)
sys.setprofile(profile)
real_exit, os._exit = os._exit, sys.exit
try:
    runpy.run_path("train.py", run_name="__main__")
except SystemExit:
    pass
sys.setprofile(None)
print(*sorted(files), sep="\\n", flush=True)
real_exit(0)
"""


def tokens(folder):
    """Counts the tokens of code of all modules below a folder."""
    return sum(map(tokens_of_file, folder.rglob("*.py")))


@cache
def tokens_of_file(path):
    text = path.read_text()
    bodies = (getattr(node, "body", None) for node in ast.walk(ast.parse(text)))
    prose = {
        statement.lineno
        for body in bodies
        if isinstance(body, list)
        for statement in body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(one.type not in NO_CODE and not (one.type == tokenize.STRING and one.start[0] in prose) for one in found)


def test_every_folder_has_a_line():
    folders = {f"{top}/{path.name}" for top in ("gmmae", "tests") for path in (ROOT / top).iterdir() if any(path.glob("*.py"))}
    assert set(MOST) == folders | {"gmmae", "tests", "experiments", "benchmarks"}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="later versions of Python count the insides of f-strings")
@pytest.mark.parametrize("folder", MOST)
def test_a_folder_is_no_larger_than_its_line_and_the_line_follows_it_down(folder):
    assert tokens(ROOT / folder) <= MOST[folder] <= max(SLACK * tokens(ROOT / folder), tokens(ROOT / folder) + 50)


@pytest.mark.slow
def test_an_epoch_crosses_few_files_on_the_host(tmp_path):
    options = ["--data.samples=64", "--data.validation=32", "--stop.target=none", "--stop.max-epochs=4"]
    files = python("-c", EPOCH, *options, "--workdir", tmp_path / "run").stdout.split("\n")
    crossed = [line for line in files if line.startswith(str(ROOT))]
    assert 5 < len(crossed) <= MOST_FILES, crossed
