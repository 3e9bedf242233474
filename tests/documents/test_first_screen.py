"""The README's first block, run in a fresh shell: GMMAE_TEST_INSTALL=1 sets up an environment, in minutes."""

import json
import os
import re
import subprocess
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


def first_block() -> list[str]:
    lines = dropwhile(lambda line: not line.startswith("    "), (ROOT / "README.md").read_text(encoding="utf-8").splitlines())
    return [line.strip() for line in takewhile(lambda line: line.startswith("    "), lines)]


def test_the_first_block_works_as_typed(tmp_path):
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
    environ = {key: value for key, value in os.environ.items() if not OURS.match(key)}
    pip = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    environ |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_CACHE_DIR": pip}  # no compiled program of earlier calls
    lines = first_block()
    assert [line.split()[0] for line in lines] == ["make", "source", "python"]
    places = 'command -v python gmmae; python -c "import sys; print(sys.prefix)"'
    shell = ["bash", "--noprofile", "--norc", "-exc", "\n".join([*lines, places])]
    done = subprocess.run(shell, cwd=copy, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    printed = [line for line in done.stdout.splitlines() if not line.startswith("+")]
    assert printed[-3:] == [*(f"{copy}/.venv/bin/{name}" for name in ("python", "gmmae")), f"{copy}/.venv"]
    assert "--stop.target" in done.stdout
    run = copy / "runs" / "quickstart"
    assert json.loads((run / "record.json").read_text(encoding="utf-8"))["stop_reason"] == "target_reached"
    assert (run / "figures" / "reconstructions.png").is_file()
