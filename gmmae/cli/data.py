"""`gmmae data prepare`, `inspect`, `lidc` and `synth`."""

import math
from pathlib import Path

import numpy as np

from gmmae.cli.options import InspectArguments, LidcArguments, PrepareArguments, SynthArguments
from gmmae.data.extraction import prepare as extraction
from gmmae.data.extraction.prepare import SUMMARY, Prepared, load_prepared, say_on_stderr
from gmmae.data.extraction.summary import lines
from gmmae.data.lidc.folder import LEFT_OUT, Options, cut_folder
from gmmae.data.settings import DataConfig
from gmmae.data.synthetic.scans import Frame, write_luna16_folder
from gmmae.data.volumes import DataError, Details, Nodules
from gmmae.plotting.canvas import MARK
from gmmae.plotting.slices import contact_sheet, nodule_slices
from gmmae.system.files import claim_output, print_result, whole_file, writing

CONTACT_SHEET = "contact_sheet.png"


def prepare(options: PrepareArguments) -> int:
    """Extracts all nodules, or finds them in the cache; prints a summary and the files. Returns the exit code."""
    if options.out is not None:
        claim_output(options.out, SUMMARY)
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


def inspect(options: InspectArguments) -> int:
    """Prints the properties of one nodule, and draws its central slices. Returns the exit code."""
    claim_output(options.out, MARK.encode())
    nodules, details = load_prepared(extraction.prepare(options.data, say_on_stderr))
    i = _find(nodules, options.which)
    mask = None if nodules.masks is None else nodules.masks[i]
    title = f"{nodules.names[i]} {nodules.categories[i]}"
    with writing("--out", options.out, "file"):
        nodule_slices(options.out, nodules.values[i], mask, options.data.window, float(details.edge_mm[i]), title)
    print(*_properties(nodules, details, i, options.data.hu), f"picture    {options.out}", sep="\n")
    return 0


def lidc(options: LidcArguments) -> int:
    """Cuts the nodules of LIDC-IDRI into a folder of cubes, and prints what was found and left out. Returns the exit code."""
    claim_output(options.out, LEFT_OUT)
    choices = Options(options.min_readers, options.agreement, options.margin_mm, options.annotations)
    tally = cut_folder(options.root, options.out, choices, say_on_stderr)
    uses = f"--data.source cubes --data.root {options.out} uses them"
    print_result(options.out, [*tally.lines(options.out / LEFT_OUT), uses])
    return 0


def synth(options: SynthArguments) -> int:
    """Writes a folder of synthetic scans in LUNA16's shape. Returns the exit code."""
    pixels = options.pixels
    frame = Frame((options.slices, pixels, pixels), np.array([2.5, 360 / pixels, 360 / pixels]))
    rows = write_luna16_folder(options.root, options.scans, options.nodules, options.seed, frame, options.compressed)
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
        nodules, details = load_prepared(prepared)
        contact_sheet(path, nodules.values, details.filled, config.window, "HU" if config.hu else "")
    return path
