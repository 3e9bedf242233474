"""The parameters of one synthetic lung nodule with its vessels and chest wall, and their random distributions.

A phantom refers to no grid; `gmmae.data.synthetic.painting` renders it. All vectors are in array order, z, y, x, in mm from the
nodule's centre.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

Vector = Float64[np.ndarray, "3"]
Range = tuple[float, float]

DIAMETER_MM = (3.0, 30.0)
"""The smallest and largest nodules of LUNA16, between which diameters are clipped."""


class Kind(NamedTuple):
    """A category: its share of all nodules, and the ranges of its parameters, in HU and fractions of the radius."""

    share: float
    shell_hu: Range
    core_hu: Range
    core_radius: Range
    texture_hu: float


_SOLID = Kind(0.6, (-70, 70), (-30, 110), (0.3, 0.9), 40)
CATEGORIES = {
    "solid": _SOLID,
    "part-solid": Kind(0.13, (-620, -380), (-60, 60), (0.35, 0.7), 60),
    "ground-glass": Kind(0.12, (-720, -480), (-600, -420), (0.2, 0.6), 50),
    "juxta-pleural": _SOLID._replace(share=0.15),
}


class Tube(NamedTuple):
    """A vessel along `start + t along + t² bend`, 0 ≤ t ≤ length, whose radius shrinks linearly to `taper` times."""

    start_mm: Vector
    along: Vector
    bend: Vector
    length_mm: float
    radius_mm: float
    taper: float
    hu: float


class Wall(NamedTuple):
    """Chest wall where `normal · x > distance - curvature/2 · (the squared distance from the normal's axis)`."""

    normal: Vector
    distance_mm: float
    curvature: float
    hu: float


class Phantom(NamedTuple):
    """A nodule: an ellipsoid (`axes`: principal directions over semi-axes, 1/mm), roughened and raised in some directions.

    `lobes` and `spicules` are unit directions times heights, relative to the radius. `relief`, noise on a lattice of a quarter
    diameter, roughens the surface by `roughness` and varies the inside by `texture_hu`.
    """

    category: str
    diameter_mm: float
    axes: Float64[np.ndarray, "3 3"]
    lobes: Float64[np.ndarray, "lobes 3"]
    spicules: Float64[np.ndarray, "spicules 3"]
    relief: Float64[np.ndarray, "8 8 8"]
    roughness: float
    shell_hu: float
    texture_hu: float
    core_hu: float
    core_mm: Vector
    core_radius: float
    tubes: tuple[Tube, ...]
    wall: Wall | None


def random_directions(rng: np.random.Generator, *count: int) -> Float64[np.ndarray, "*count 3"]:
    """Unit vectors, uniform on the sphere; without a count a single one."""
    vectors = rng.standard_normal((*count, 3))
    return vectors / np.sqrt(np.square(vectors).sum(-1, keepdims=True))


def random_tube(rng: np.random.Generator, start_mm: Vector, along: Vector, length_mm: float, radius_mm: float) -> Tube:
    """A vessel that leaves `start_mm` along a unit vector and bends to a random side."""
    side = np.cross(along, random_directions(rng))
    bend, taper, hu = rng.uniform((0, 0.2, -60), (0.6, 0.9, 60))
    return Tube(start_mm, along, side * (bend / length_mm), length_mm, radius_mm, taper, hu)


def draw_phantom(rng: np.random.Generator, category: str | None = None, largest_mm: float = DIAMETER_MM[1]) -> Phantom:
    """A random nodule with its vessels and wall, of a category or of one drawn by its share.

    Diameters are log-normal with LUNA16's median of 7 mm, clipped to `DIAMETER_MM`. One in twelve solid nodules is calcified,
    one in three nodules that are not ground-glass is spiculated.
    """
    drawn = str(rng.choice(list(CATEGORIES), p=[kind.share for kind in CATEGORIES.values()]))
    name = category or drawn  # drawn in any case, for the draws that follow
    kind = CATEGORIES[name]
    diameter_mm = float(np.clip(rng.lognormal(1.97, 0.5), DIAMETER_MM[0], min(largest_mm, DIAMETER_MM[1])))
    first, second = random_directions(rng, 2)
    second = np.cross(first, second)
    second /= math.sqrt(second @ second)
    semi_axes = 0.5 * diameter_mm * np.array([rng.uniform(0.9, 1.1), *rng.uniform(0.6, 1.0, 2)])
    lobes = random_directions(rng, 6) * rng.uniform(0.01, 0.3, (6, 1))
    spiculated = name != "ground-glass" and rng.uniform() < 1 / 3
    spicules = random_directions(rng, 14) * rng.uniform(0.15, 0.7, (14, 1))
    shell_hu, core_hu, core_radius = (rng.uniform(*bounds) for bounds in (kind.shell_hu, kind.core_hu, kind.core_radius))
    calcified, calcium_hu, extent = rng.uniform((0, 200, 0.5), (1, 1300, 1.1))
    if name == "solid" and calcified < 1 / 12:
        core_hu, core_radius = calcium_hu, extent
    relief, roughness = rng.standard_normal((8, 8, 8)), rng.uniform(0.04, 0.16)
    core_mm = random_directions(rng) * rng.uniform(0, 0.12) * diameter_mm
    feeding, tubes, wall = rng.choice(3, p=(0.5, 0.33, 0.17)), list[Tube](), None
    for index in range(feeding + min(rng.poisson(0.8 + diameter_mm / 7), 6)):
        along, away = random_directions(rng, 2)
        radius_mm = min(rng.lognormal(-0.1, 0.45), 0.22 * diameter_mm)
        length_mm = rng.uniform(0.8, 1.6) * diameter_mm
        start_mm = along * 0.2 * diameter_mm
        if index >= feeding:
            start_mm = away * rng.uniform(0.55, 0.95) * diameter_mm - along * length_mm / 2
        tubes.append(random_tube(rng, start_mm, along, length_mm, radius_mm))
    near, present, curvature, hu = rng.uniform(size=4)
    attached = name == "juxta-pleural"
    if attached or present < 0.2:
        distance_mm = (0.1 + 0.3 * near if attached else 0.45 + 0.2 * near) * diameter_mm
        wall = Wall(random_directions(rng), distance_mm, (curvature - 0.3) / (2 * diameter_mm), 10 + 60 * hu)
    return Phantom(
        name,
        diameter_mm,
        np.stack([first, second, np.cross(first, second)]) / semi_axes[:, None],
        lobes,
        spicules if spiculated else spicules[:0],
        relief,
        roughness,
        shell_hu,
        kind.texture_hu,
        core_hu,
        core_mm,
        core_radius,
        tuple(tubes),
        wall,
    )
