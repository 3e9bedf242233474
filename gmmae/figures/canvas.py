"""What all figures share: resolution, colours, numbers as the paper sets them, and whole files or none."""

import math
import os
from pathlib import Path

from matplotlib.figure import Figure

DPI = 150
# Okabe and Ito's colours, which stay apart for the colour-blind.
BLUE, ORANGE, VERMILION, GREY = "#0072B2", "#E69F00", "#D55E00", "#666666"


def power_of_ten(value: float, digits: int = 1) -> str:
    """A loss as the paper sets it, 4.7×10⁻³."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞"
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    if int(exponent) == 0:
        return mantissa
    return rf"${mantissa}\times10^{{{int(exponent)}}}$"


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a PNG beside its final place, then move it there."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        figure.savefig(partial, format="png", dpi=DPI, facecolor="white")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path
