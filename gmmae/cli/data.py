"""`gmmae data prepare`, `inspect` and `synth`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from gmmae.cli.arguments import MISSING, Folder, Name, data_section, parse
from gmmae.config.rules import Options, Seed, between, increasing
from gmmae.data.extraction import prepare as extraction
from gmmae.data.extraction.prepare import SUMMARY, Prepared, load_prepared, say_on_stderr
from gmmae.data.extraction.summary import lines
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, Details, Nodules
from gmmae.system.files import whole_file, writing

CONTACT_SHEET = "contact_sheet.png"


@dataclass(frozen=True)
class PrepareArguments(Options):
    """Cut the nodules out of their scans, once, into the cache."""

    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path | None = None  # folder for copies of summary.json and contact_sheet.png
    refresh: bool = False  # delete these data from the cache, and extract them again
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class InspectArguments(Options):
    """Show the properties of one nodule, and its central slices."""

    which: Name  # the nodule's name, a part that only it has, or its number from 0
    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path = Path("nodule.png")  # the picture to write
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class SynthArguments(Options):
    """Write a folder of synthetic scans in LUNA16's shape."""

    root: Folder  # the folder to write; empty or new
    scans: Annotated[int, between(1, 100_000)] = 10  # scans to write
    nodules: Annotated[tuple[int, int], increasing(0, 1000)] = (0, 3)  # the fewest and the most nodules in a scan
    seed: Seed = 0  # random seed of the scans
    slices: Annotated[int, between(1, 4096)] = 120  # along z, 2.5 mm apart
    pixels: Annotated[int, between(1, 4096)] = 256  # along x and y each; together they are 360 mm wide
    compressed: bool = False  # write .zraw rather than .raw


def prepare(arguments: Sequence[str], prog: str) -> int:
    """Extracts all nodules, or finds them in the cache; prints a summary and the files. Returns the exit code."""
    options = parse(PrepareArguments(data=data_section(arguments)), arguments, prog)
    prepared = extraction.prepare(options.data, say_on_stderr, options.refresh)
    paths = [prepared.folder / SUMMARY, _contact_sheet(options.data, prepared)]
    if options.out is not None:
        with writing("--out", options.out, "folder"):
            options.out.mkdir(parents=True, exist_ok=True)
            for i, path in enumerate(paths):
                paths[i] = options.out / path.name
                with whole_file(paths[i]) as part:
                    part.write_bytes(path.read_bytes())
    seconds = prepared.summary["seconds"]
    origin = f"extracted in {seconds['total_s']:.1f} s, {seconds['read_share']:.0%} of it reading"
    origin = "found in the cache" if prepared.from_cache else origin
    print(*lines(prepared.summary), f"{origin}: {prepared.folder}", *paths, sep="\n")
    return 0


def inspect(arguments: Sequence[str], prog: str) -> int:
    """Prints the properties of one nodule, and draws its central slices. Returns the exit code."""
    options = parse(InspectArguments(MISSING, data=data_section(arguments)), arguments, prog)
    from gmmae.plotting.slices import nodule_slices

    nodules, details = load_prepared(extraction.prepare(options.data, say_on_stderr))
    i = _find(nodules, options.which)
    mask = None if nodules.masks is None else nodules.masks[i]
    title = f"{nodules.names[i]} {nodules.categories[i]}"
    with writing("--out", options.out, "file"):
        nodule_slices(options.out, nodules.values[i], mask, options.data.window, float(details.edge_mm[i]), title)
    print(*_properties(nodules, details, i, options.data.hu), f"picture    {options.out}", sep="\n")
    return 0


def synth(arguments: Sequence[str], prog: str) -> int:
    """Writes a folder of synthetic scans in LUNA16's shape. Returns the exit code."""
    options = parse(SynthArguments(MISSING), arguments, prog)
    from gmmae.data.synthetic.scans import write_luna16_folder

    pixels = options.pixels
    rows = write_luna16_folder(
        options.root,
        options.scans,
        options.nodules,
        options.seed,
        shape=(options.slices, pixels, pixels),
        spacing_mm=(360 / pixels, 360 / pixels, 2.5),
        compressed=options.compressed,
    )
    size = sum(path.stat().st_size for path in options.root.rglob("*") if path.is_file())
    voxels = f"{options.slices} × {pixels} × {pixels} voxels"
    print(f"{options.scans} scans of {voxels} with {len(rows)} nodules, {size / 1e6:.0f} MB: {options.root}")
    print(f"--data.source luna16 --data.root {options.root} uses them")
    return 0


def _properties(nodules: Nodules, details: Details, i: int, hu: bool) -> list[str]:
    values, diameter = nodules.values[i], float(details.diameter_mm[i])
    centre = values[tuple(n // 2 for n in values.shape)]
    properties = {
        "nodule": f"{i}  {nodules.names[i]}",
        "group": nodules.groups[i],
        "category": nodules.categories[i] or "none given",
        "from": details.places[i],
        "centre": "({:.2f}, {:.2f}, {:.2f}) mm, world x, y, z".format(*details.centre_mm[i]),
        "diameter": "none given" if math.isnan(diameter) else f"{diameter:.2f} mm",
        "cube": _size(values.shape, float(details.edge_mm[i])),
        "filled": f"{details.filled[i]:.1%} of the voxels lie outside the scan",
        "HU" if hu else "values": f"{values.min():g} to {values.max():g}, mean {values.mean():.4g}, centre {centre:g}",
    }
    if nodules.masks is not None:
        properties["mask"] = f"{int(nodules.masks[i].sum())} voxels"
    return [f"{name:<10} {value}" for name, value in properties.items()]


def _size(shape: tuple[int, ...], edge_mm: float) -> str:
    if len(set(shape)) == 1:
        return f"{shape[0]} voxels, {edge_mm:.2f} mm along each axis"
    return f"{' × '.join(map(str, shape))} voxels of {edge_mm / max(shape):.2f} mm"


def _find(nodules: Nodules, which: str) -> int:
    if which.isdecimal() and str(int(which)) == which and int(which) < len(nodules.names):
        return int(which)
    if which in nodules.names:
        return nodules.names.index(which)
    matches = [i for i, name in enumerate(nodules.names) if which in name]
    if len(matches) == 1:
        return matches[0]
    some = ", ".join(nodules.names[i] for i in matches[:4]) or "none"
    raise DataError(
        f"NODULE must be a number below {len(nodules.names)}, a name, or a part of one name only; got {which!r}, which is in "
        f"{len(matches)} names: {some}"
    )


def _contact_sheet(config: DataConfig, prepared: Prepared) -> Path:
    """Draws the contact sheet if there is none for the window. The cache does not vouch for it."""
    low, high = config.window
    path = prepared.folder / CONTACT_SHEET
    if config.window != DataConfig.window:
        path = path.with_stem(f"{path.stem}_{low:g}_{high:g}")
    if not path.exists():
        from gmmae.plotting.slices import contact_sheet

        nodules, details = load_prepared(prepared)
        contact_sheet(path, nodules.values, details.filled, config.window, "HU" if config.hu else "")
    return path
