"""The notebooks are small, were executed without an error, name no path of a machine, and run."""

import ast
import json

import pytest

from docs import execute
from tests.documents.reading import NOTEBOOKS

MAX_BYTES = 150_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_executed_in_order_and_is_small(path):
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    assert "Traceback" not in text
    assert "/home/" not in text
    assert "/tmp/" not in text
    assert "/root/" not in text
    assert len(text) < MAX_BYTES
    for cell in cells:
        source = "".join(cell["source"])
        if not source.startswith(("!", "%%")):
            ast.parse(source)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    if "import torch" in path.read_text(encoding="utf-8"):
        pytest.importorskip("torch", reason="the notebook trains with PyTorch, which `make bench` installs")
    execute.run(path)
