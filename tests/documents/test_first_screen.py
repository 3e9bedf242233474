"""The README's first block, typed line by line in a fresh shell: GMMAE_TEST_INSTALL=1 sets up an environment, in minutes."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import dropwhile, takewhile
from pathlib import Path

import pytest

from tests.documents.reading import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("GMMAE_TEST_INSTALL"), reason="GMMAE_TEST_INSTALL=1 downloads what is installed"),
]

OURS = re.compile(r"GMMAE_|JAX_|XLA_|PJRT_|PYTHON|PYTEST|VIRTUAL_ENV|MAKE|MFLAGS")
"""Variables that a user's shell lacks."""

MARK = "exit code of the line:"


def first_block() -> list[str]:
    lines = dropwhile(lambda line: not line.startswith("    "), (ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    return [line.strip() for line in takewhile(lambda line: line.startswith("    "), lines)]


def typed(lines: Sequence[str], folder: Path, environ: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yields the exit code of each line and what it printed; all are typed into one shell, one after the other."""
    shell = ["bash", "--noprofile", "--norc"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        shell, cwd=folder, env=environ, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdin
        assert process.stdout
        for line in lines:
            process.stdin.write(f'{line}\necho "{MARK} $?"\n')
            process.stdin.flush()
            printed = ""
            for part in process.stdout:
                if part.startswith(MARK):
                    yield int(part.removeprefix(MARK)), printed
                    break
                printed += part
            else:
                raise AssertionError(f"the shell ended at: {line}\n{printed[-4000:]}")


def test_the_first_block_works_as_typed(tmp_path):
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
    environ = {key: value for key, value in os.environ.items() if not OURS.match(key)}
    pip = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    environ |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_CACHE_DIR": pip}  # no compiled program of earlier calls
    lines = first_block()
    assert [line.split()[0] for line in lines] == ["make", "source", "python"]
    where = 'command -v python gmmae; python -c "import sys; print(sys.prefix)"'
    found = list(typed([*lines, where], copy, environ))
    for line, (code, text) in zip([*lines, where], found, strict=True):
        assert code == 0, f"{line}\n{text[-4000:]}"
    assert found[-1][1].splitlines() == [*(f"{copy}/.venv/bin/{name}" for name in ("python", "gmmae")), f"{copy}/.venv"]
    assert "--stop.target" in found[-2][1]
    run = copy / "runs" / "quickstart"
    assert json.loads((run / "record.json").read_text(encoding="utf-8"))["stop_reason"] == "target_reached"
    assert (run / "figures" / "reconstructions.png").is_file()
