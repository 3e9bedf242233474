"""Draws the schematic pictures of the documents as SVG: `python -m docs.draw`. Sizes in them are the defaults of the code."""

import math
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from gmmae.data.settings import DataConfig
from gmmae.models.settings import ModelConfig

FOLDER = Path(__file__).parent / "pictures"
INK, LINE, FILL, ACCENT = "#1f2933", "#52606d", "#eef2f6", "#d97706"
BLUE = "#2f6fab"
COMPONENTS = ((7.0, 7.4, 2.6, 1.9, 0.5, 1.0), (9.6, 8.8, 1.7, 2.3, -0.4, 0.75), (5.4, 9.8, 1.3, 1.6, 0.3, 0.5))
"""Centre, standard deviations, rotation and height of the drawn components, in voxels of a slice of 16."""


def text(x: float, y: float, words: str, size: int = 17, anchor: str = "middle", weight: str = "normal") -> str:
    """Returns lines of text, the first one with its baseline at y."""
    lines = "".join(
        f'<tspan x="{x:g}" dy="{1.25 * size * (i > 0):g}">{escape(line)}</tspan>' for i, line in enumerate(words.split("\n"))
    )
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{INK}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{lines}</text>'


def box(x: float, y: float, width: float, height: float, fill: str = FILL, stroke: str = LINE, dashes: str = "none") -> str:
    """Returns a rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{stroke}" '
        f'stroke-width="1.5" stroke-dasharray="{dashes}"/>'
    )


def arrow(points: Sequence[tuple[float, float]], dashes: str = "none", color: str = LINE) -> str:
    """Returns a line through points, with an arrow at its end."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}" '
        'marker-end="url(#arrow)"/>'
    )


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Returns an SVG on white."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="Helvetica, Arial, sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _density(x: float, y: float) -> float:
    total = 0.0
    for cx, cy, sx, sy, turn, height in COMPONENTS:
        u = (x - cx) * math.cos(turn) + (y - cy) * math.sin(turn)
        v = (y - cy) * math.cos(turn) - (x - cx) * math.sin(turn)
        total += height * math.exp(-0.5 * ((u / sx) ** 2 + (v / sy) ** 2))
    return 0.62 * total


def _slice(x0: float, y0: float, side: float, grain: float) -> list[str]:
    """Returns a slice of 16 × 16 voxels: the components' density, with regular grain for a measured one."""
    voxel, parts = side / 16, []
    for row in range(16):
        for column in range(16):
            value = _density(column + 0.5, row + 0.5) + grain * (
                math.sin(12.9898 * row + 78.233 * column) * 43758.5453 % 1 - 0.5
            )
            grey = round(255 * min(max(value, 0.0), 1.0))
            parts.append(
                f'<path d="M{x0 + column * voxel:g} {y0 + row * voxel:g}h{voxel + 0.3:g}v{voxel + 0.3:g}h-{voxel + 0.3:g}z" '
                f'fill="#{grey:02x}{grey:02x}{grey:02x}"/>'
            )
    return parts


def model() -> str:
    """Returns the autoencoder: volume, encoder, latent vector, mixture, density, loss."""
    sizes, side = ModelConfig(), 140
    layers = "\n".join(f"{filters} × {k}³" for filters, k in zip(sizes.filters, sizes.kernels, strict=True))
    top, low = 62, 330
    parts = [text(90, 40, "volume x", weight="bold"), *_slice(20, top, side, 0.3)]
    parts += [text(90, top + side + 24, f"{DataConfig().shape}³ voxels, a slice of it", 14)]
    parts += [arrow([(166, top + 70), (222, top + 70)])]
    for i in range(3):
        parts.append(box(226 + 40 * i, top + 14 * i, 34, side - 28 * i, "#dbe7f3", BLUE))
    parts += [text(284, 40, "encoder", weight="bold"), text(284, top + side + 24, "3 convolutions:", 14)]
    parts += [text(284, top + side + 42, ", ".join(layers.split("\n")), 14), arrow([(346, top + 70), (420, top + 70)])]
    parts += [box(426, top - 4 + 15 * i, 24, 13, "#fdf0dc" if i % 3 else "#f3c98b", ACCENT) for i in range(10)]
    parts += [text(438, 40, "latent vector", weight="bold"), text(438, top + side + 30, f"{sizes.latent_dim} numbers", 14)]
    parts += [arrow([(458, top + 70), (522, top + 70)]), box(526, top + 20, 174, 100)]
    parts += [
        text(613, 40, "heads", weight="bold"),
        text(613, top + 56, "weights α, means μ,\nstandard deviations σ,\ncorrelations ρ", 15),
    ]
    parts += [arrow([(613, top + 126), (613, low - 5)])]
    parts += [text(628, low - 12, "mixture", weight="bold", anchor="start"), box(543, low, side, side, "white")]
    for cx, cy, sx, sy, turn, height in COMPONENTS:
        for scale in (1, 2):
            parts.append(
                f'<ellipse cx="{543 + cx * side / 16:g}" cy="{low + cy * side / 16:g}" rx="{scale * sx * side / 16:g}" '
                f'ry="{scale * sy * side / 16:g}" transform="rotate({math.degrees(turn):.0f} {543 + cx * side / 16:g} '
                f'{low + cy * side / 16:g})" fill="{BLUE}" fill-opacity="{0.22 * height:g}" stroke="{BLUE}"/>'
            )
    parts += [
        text(613, low + side + 22, f"{sizes.components} normal distributions", 14),
        arrow([(536, low + 70), (452, low + 70)]),
    ]
    parts += [text(376, low - 8, "density M", weight="bold"), *_slice(306, low, side, 0.0)]
    parts += [text(376, low + side + 22, "at each voxel", 14), arrow([(300, low + 70), (236, low + 70)])]
    parts += [box(20, low + 22, 212, 96, "#fdf0dc", ACCENT), text(126, low + 52, "loss", weight="bold")]
    parts += [text(126, low + 80, "mean over voxels of", 15), text(126, low + 102, "(log(1+M) − log(1+x))²", 15)]
    parts += [arrow([(90, top + side + 34), (90, low + 18)], "6 4")]
    return picture(720, 505, "The autoencoder, from a volume to the loss", parts)


def scaling() -> str:
    """Returns the batches of strong and of weak scaling on 1, 2 and 4 devices."""
    batch, parts, y = 8, [], 96
    parts += [text(215, 34, "strong scaling", 20, weight="bold"), text(215, 60, "the batch stays, each device has less", 15)]
    parts += [text(545, 34, "weak scaling", 20, weight="bold"), text(545, 60, "each device keeps B, the batch grows", 15)]
    for n in (1, 2, 4):
        parts.append(text(12, y + 40, f"n = {n}", anchor="start", weight="bold"))
        for x, share in ((80, batch // n), (410, batch)):
            for device in range(n):
                parts.append(box(x + 68 * device, y, 62, 62))
                for sample in range(share):
                    left, up = x + 68 * device + 8 + 12.5 * (sample % 4), y + 14 + 20 * (sample // 4)
                    parts.append(f'<circle cx="{left + 4:g}" cy="{up + 5:g}" r="4.6" fill="{BLUE if x < 400 else ACCENT}"/>')
            total = share * n
            words = f"{total} samples a step, {64 // total} step{'s' if total < 64 else ''} for 64 samples"
            parts.append(text(x, y + 82, words, 14, "start"))
        y += 112
    parts.append(text(360, y + 12, "A box is a device. A dot is a sample of its step. The base batch B is 8.", 14))
    return picture(720, y + 30, "Batches of strong and weak scaling on 1, 2 and 4 devices", parts)


def generator() -> str:
    """Returns the steps from training nodules to new ones."""
    steps = (
        ("training nodules", "their latent vectors, residuals and masks"),
        ("draw a latent vector", "smoothed bootstrap: bands of components of several nodules"),
        ("decode", "mixture, mask and mass"),
        ("add texture", "residuals and grey levels of similar nodules"),
        ("compare with the training set", "too near: draw again"),
        ("rotate or reflect", "one of 16 symmetries"),
        ("write", "cube, mask, row of nodules.csv"),
    )
    parts, y = [], 16
    for number, (name, detail) in enumerate(steps):
        last = number == len(steps) - 1
        colors = ("#fdf0dc", ACCENT) if number in (0, len(steps) - 1) else ("#dbe7f3", BLUE)
        parts += [box(110, y, 500, 58, *colors), text(360, y + 24, name, weight="bold"), text(360, y + 46, detail, 15)]
        if not last:
            parts.append(arrow([(360, y + 58), (360, y + 78)]))
        y += 80
    parts.append(arrow([(110, 365), (60, 365), (60, 125), (106, 125)], "6 4"))
    parts.append(arrow([(610, 45), (660, 45), (660, 285), (614, 285)], "6 4"))
    return picture(720, y - 6, "From training nodules to new ones", parts)


PICTURES = {"model.svg": model, "scaling.svg": scaling, "generator.svg": generator}


def main() -> None:
    """Writes all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
