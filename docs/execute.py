"""Runs notebooks in empty folders, and writes their outputs into them: `python -m docs.execute [NOTEBOOK ...]`."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"
TIMEOUT_S = 600


def run(path: Path) -> nbformat.NotebookNode:
    """Returns a notebook with the outputs of a run in an empty folder, without times and names of this machine."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # The interpreter's own folder first, so that `!gmmae` is that of its environment.
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        client = NotebookClient(notebook, timeout=TIMEOUT_S, record_timing=False, resources={"metadata": {"path": folder}})
        client.execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
        for output in cell.get("outputs", []):
            output.get("metadata", {}).clear()
            data = output.get("data", {})
            if "image/png" in data:
                data.pop("text/plain", None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},  # with command lines
    }
    return notebook


def joined(outputs: Sequence[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Returns the outputs of a cell, where printed text that came in pieces is one output."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if found and output.output_type == "stream" and found[-1].get("name") == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main(arguments: Sequence[str]) -> None:
    """Runs the given notebooks, or all, and prints the seconds of each."""
    for path in [Path(argument) for argument in arguments] or sorted(NOTEBOOKS.glob("*.ipynb")):
        start = time.monotonic()
        notebook = run(path)
        nbformat.write(notebook, path)
        print(f"{path.stem}: {time.monotonic() - start:.0f} s, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
