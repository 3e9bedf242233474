"""The command of a module that draws one figure."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.options import Parser, guarded
from gmmae.plotting import canvas


def command(doc: str | None, figure: Callable[[], Figure]) -> None:
    """Draws the figure, writes it to `--out` and prints the path. Bad input ends with one line."""
    parser = Parser(doc)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    guarded(lambda: print(canvas.save(figure(), out)))
