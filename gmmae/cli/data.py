"""What `gmmae data prepare`, `inspect` and `synth` do; each returns the text it has for the user."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from gmmae.cli.arguments import MISSING, Folder, Name, data_section, parse
from gmmae.config.rules import Options, Seed, between, increasing
from gmmae.data.extraction.prepare import SUMMARY, Prepared, load_prepared, prepare, say_on_stderr
from gmmae.data.extraction.summary import lines
from gmmae.data.settings import DataConfig
from gmmae.data.volumes import DataError, Details, Nodules
from gmmae.system.files import told, whole_file

CONTACT_SHEET = "contact_sheet.png"


@dataclass(frozen=True)
class PrepareArguments(Options):
    """Cut the nodules out of their scans, once, into the cache."""

    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path | None = None  # folder for copies of summary.json and contact_sheet.png
    refresh: bool = False  # throw away what the cache has of these data, and extract anew
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class InspectArguments(Options):
    """Show what is known of one nodule, and its central slices."""

    which: Name  # the nodule's name, a part that only it has, or its number from 0
    config: str | None = None  # TOML file, or the name of one in configs/, whose data section is used
    out: Path = Path("nodule.png")  # the picture to write
    data: DataConfig = field(default_factory=DataConfig)


@dataclass(frozen=True)
class SynthArguments(Options):
    """Write a folder of synthetic scans in LUNA16's shape."""

    root: Folder  # the folder to write; empty, or made
    scans: Annotated[int, between(1, 100_000)] = 10  # scans to write
    nodules: Annotated[tuple[int, int], increasing(0, 1000)] = (0, 3)  # the fewest and the most nodules in a scan
    seed: Seed = 0  # another seed, other scans
    slices: Annotated[int, between(1, 4096)] = 120  # along z, 2.5 mm apart
    pixels: Annotated[int, between(1, 4096)] = 256  # along x and y each; together they are 360 mm wide
    compressed: bool = False  # write .zraw rather than .raw


def parse_prepare(arguments: Sequence[str], prog: str) -> PrepareArguments:
    """The arguments of `data prepare`. Errors as `parse_train`."""
    return parse(PrepareArguments(data=data_section(arguments)), arguments, prog)


def parse_inspect(arguments: Sequence[str], prog: str) -> InspectArguments:
    """The arguments of `data inspect`. Errors as `parse_train`."""
    return parse(InspectArguments(MISSING, data=data_section(arguments)), arguments, prog)


def parse_synth(arguments: Sequence[str], prog: str) -> SynthArguments:
    """The arguments of `data synth`. Errors as `parse_train`."""
    return parse(SynthArguments(MISSING), arguments, prog)


def prepare_data(config: DataConfig, out: Path | None = None, refresh: bool = False) -> str:
    """Extract all nodules, or find them in the cache; the summary in lines, and where the files are.

    Args:
      config: the data section.
      out: a folder that gets copies of summary.json and contact_sheet.png; None leaves them in the cache only.
      refresh: extract anew what the cache has.

    Raises:
      DataError: as `gmmae.data.extraction.prepare.load`.
    """
    prepared = prepare(config, say_on_stderr, refresh)
    sheet = _contact_sheet(config, prepared)
    places = [prepared.folder / SUMMARY, sheet]
    if out is not None:
        with told("--out", out, "folder"):
            out.mkdir(parents=True, exist_ok=True)
            for i, place in enumerate(places):
                places[i] = out / place.name
                with whole_file(places[i]) as part:
                    part.write_bytes(place.read_bytes())
    seconds = prepared.summary["seconds"]
    how = "found in the cache" if prepared.from_cache else f"extracted in {seconds['total_s']:.1f} s"
    if not prepared.from_cache:
        how += f", {seconds['read_share']:.0%} of it reading"
    return "\n".join([*lines(prepared.summary), f"{how}: {prepared.folder}", *map(str, places)])


def inspect_data(config: DataConfig, which: str, out: Path) -> str:
    """What is known of one nodule, and a picture of its central slices.

    Args:
      config: the data section.
      which: the nodule's name, a part of it that no other name has, or its number from 0.
      out: the PNG to write.

    Raises:
      DataError: no nodule, or several, of that name; or as `gmmae.data.extraction.prepare.load`.
    """
    from gmmae.plotting.slices import nodule_slices

    nodules, details = load_prepared(prepare(config, say_on_stderr))
    i = _find(nodules, which)
    mask = None if nodules.masks is None else nodules.masks[i]
    name = nodules.names[i]
    title = f"{name} {nodules.categories[i]}"
    with told("--out", out, "file"):
        nodule_slices(out, nodules.values[i], mask, config.window, float(details.edge_mm[i]), title)
    return "\n".join([*_facts(nodules, details, i, config.hu), f"picture    {out}"])


def synth_data(
    root: Path, scans: int, nodules_per_scan: tuple[int, int], seed: int, slices: int, pixels: int, compressed: bool
) -> str:
    """Write a folder of synthetic scans in LUNA16's shape.

    Args:
      root: a folder that is empty or does not exist.
      scans: how many.
      nodules_per_scan: the fewest and the most.
      seed: another seed, other scans.
      slices: along z, 2.5 mm apart.
      pixels: along x and y each; together they are 360 mm wide.
      compressed: write `.zraw` rather than `.raw`.

    Raises:
      DataError: an argument is out of its range.
      InputError: the folder is not empty, or cannot be written.
    """
    from gmmae.data.synthetic.scans import write_luna16_folder

    if min(slices, pixels) < 1:
        raise DataError(f"slices and pixels must be at least 1; got {slices} and {pixels}")
    spacing_mm = (360 / pixels, 360 / pixels, 2.5)
    shape = (slices, pixels, pixels)
    rows = write_luna16_folder(root, scans, nodules_per_scan, seed, shape=shape, spacing_mm=spacing_mm, compressed=compressed)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    return "\n".join(
        [
            f"{scans} scans of {slices} × {pixels} × {pixels} voxels with {len(rows)} nodules, {size / 1e6:.0f} MB: {root}",
            f"--data.source luna16 --data.root {root} uses them",
        ]
    )


def _facts(nodules: Nodules, details: Details, i: int, hu: bool) -> list[str]:
    values, diameter = nodules.values[i], float(details.diameter_mm[i])
    centre = values[tuple(n // 2 for n in values.shape)]
    facts = {
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
        facts["mask"] = f"{int(nodules.masks[i].sum())} voxels"
    return [f"{name:<10} {value}" for name, value in facts.items()]


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
        f"a nodule is a number below {len(nodules.names)}, its name, or a part that only it has; {which!r} is in "
        f"{len(matches)} names: {some}"
    )


def _contact_sheet(config: DataConfig, prepared: Prepared) -> Path:
    """Drawn when first asked for: it is no part of what the cache vouches for, and depends on the window."""
    low, high = config.window
    path = prepared.folder / CONTACT_SHEET
    if config.window != DataConfig.window:
        path = path.with_stem(f"{path.stem}_{low:g}_{high:g}")
    if not path.exists():
        from gmmae.plotting.slices import contact_sheet

        nodules, details = load_prepared(prepared)
        contact_sheet(path, nodules.values, details.filled, config.window, "HU" if config.hu else "")
    return path
