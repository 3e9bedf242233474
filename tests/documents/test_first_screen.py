"""The README's first block, run in a fresh shell: GMMAE_TEST_INSTALL=1 sets up an environment, in minutes."""

import json
import os
import re
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from tests.documents.reading import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("GMMAE_TEST_INSTALL"), reason="GMMAE_TEST_INSTALL=1 downloads what is installed"),
]

OURS = re.compile(r"GMMAE_|JAX_|XLA_|PJRT_|PYTHON|PYTEST|VIRTUAL_ENV|MAKE|MFLAGS")
"""Variables that a user's shell lacks."""


def test_the_first_block_works_as_typed(tmp_path):
    copy, cache = tmp_path / "copy", os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
    environ = {key: value for key, value in os.environ.items() if not OURS.match(key)}
    environ |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_CACHE_DIR": cache}  # no compiled program of earlier calls
    block = re.findall(r"(?:^    .*\n)+", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
    assert re.findall(r"^    (\w+)", block, re.MULTILINE) == ["make", "source", "python"]
    script = f'{dedent(block)}command -v python gmmae; python -c "import sys; print(sys.prefix)"'
    shell = ["bash", "--noprofile", "--norc", "-ec", script]
    done = subprocess.run(shell, cwd=copy, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.splitlines()[-3:] == [*(f"{copy}/.venv/bin/{name}" for name in ("python", "gmmae")), f"{copy}/.venv"]
    assert "--stop.target" in done.stdout
    run = copy / "runs" / "quickstart"
    assert json.loads((run / "record.json").read_text())["stop_reason"] == "target_reached"
    assert (run / "figures" / "reconstructions.png").is_file()
