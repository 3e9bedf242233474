"""`gmmae data prepare`, `inspect`, `lidc` and `synth`."""

import math

import numpy as np

from gmmae.cli.options import InspectArguments, LidcArguments, PrepareArguments, SynthArguments
from gmmae.data.extraction import prepare as extraction
from gmmae.data.extraction.prepare import SUMMARY, load_prepared, say_on_stderr
from gmmae.data.extraction.summary import lines
from gmmae.data.settings import DataConfig
from gmmae.data.synthetic.scans import Frame, write_luna16_folder
from gmmae.data.volumes import DataError, own_columns
from gmmae.plotting.canvas import MARK
from gmmae.plotting.slices import contact_sheet, nodule_slices
from gmmae.system.errors import printable
from gmmae.system.files import claim_output, print_result, whole_file, writing


def prepare(options: PrepareArguments) -> None:
    """Extracts all nodules, or finds them in the cache."""
    config = options.data
    if options.out is not None:
        claim_output(options.out, SUMMARY)
    prepared = extraction.prepare(config, say_on_stderr, options.refresh)
    low, high = config.window
    other = f"_{low:g}_{high:g}" if config.window != DataConfig.window else ""
    sheet = prepared.folder / f"contact_sheet{other}.png"  # the cache does not vouch for it
    if not sheet.exists():
        nodules = load_prepared(prepared)
        contact_sheet(sheet, nodules.values, nodules.filled, config.window, "HU" if config.hu else "")
    paths = [prepared.folder / SUMMARY, sheet]
    if options.out is not None:
        with writing("--out", options.out, "folder"):
            options.out.mkdir(parents=True, exist_ok=True)
            for i, path in enumerate(paths):
                paths[i] = options.out / path.name
                with whole_file(paths[i]) as part:
                    part.write_bytes(path.read_bytes())
    origin = "found in the cache" if prepared.from_cache else f"extracted in {prepared.summary['seconds']['total_s']:.1f} s"
    print(*lines(prepared.summary, config.window), f"{origin}: {prepared.folder}", *paths, sep="\n")


def inspect(options: InspectArguments) -> None:
    """Prints the properties of one nodule, and draws its central slices."""
    claim_output(options.out, MARK.encode())
    nodules = load_prepared(extraction.prepare(options.data, say_on_stderr))
    names, which, hu, window = nodules.names, options.which, options.data.hu, options.data.window
    parts = [i for i, name in enumerate(names) if which in name]
    found = [int(which)] if which in map(str, range(len(names))) else [i for i in parts if names[i] == which] or parts
    if len(found) != 1:
        rule = f"NODULE must be a number below {len(names)}, a name, or a part of one name only"
        some = ", ".join(names[i] for i in found[:4]) or "none"
        raise DataError(f"{rule}; got {which!r}, which is in {len(found)} names: {some}")
    (i,) = found
    values, mask = nodules.values[i], None if nodules.masks is None else nodules.masks[i]
    edge_mm, diameter, shape = float(nodules.edge_mm[i]), float(nodules.diameter_mm[i]), values.shape
    with writing("--out", options.out, "file"):
        nodule_slices(options.out, values, mask, window, edge_mm, f"{names[i]} {nodules.categories[i]}")
    centre, own = values[tuple(n // 2 for n in shape)], own_columns(nodules.table, ())
    properties = {
        "nodule": f"{i}  {names[i]}",
        "group": nodules.groups[i],
        "category": nodules.categories[i] or "none given",
        "from": nodules.table["place"][i],
        "centre": "({:.2f}, {:.2f}, {:.2f}) mm, world x, y, z".format(*nodules.centre_mm[i]),
        "diameter": "none given" if math.isnan(diameter) else f"{diameter:.2f} mm",
        "cube": f"{' × '.join(map(str, shape))} voxels of {edge_mm / max(shape):.2f} mm",
        "filled": f"{nodules.filled[i]:.1%} of the voxels lie outside the scan",
        "HU" if hu else "values": f"{values.min():g} to {values.max():g}, mean {values.mean():.4g}, centre {centre:g}",
        "mask": "" if mask is None else f"{int(mask.sum())} voxels",
        "columns": printable(", ".join(f"{name}: {cells[i]}" for name, cells in own.items() if cells[i])),
        "picture": str(options.out),
    }
    print(*(f"{name:<10} {value}" for name, value in properties.items() if value), sep="\n")


def lidc(options: LidcArguments) -> None:
    """Cuts the nodules of LIDC-IDRI into a folder of cubes."""
    from gmmae.data.lidc import folder  # pydicom takes 0.3 s to import

    claim_output(options.out, folder.LEFT_OUT)
    choices = options.annotations, options.min_readers, options.agreement, options.margin_mm
    lines = folder.cut_folder(options.root, options.out, *choices, say_on_stderr)
    print_result(options.out, [*lines, f"--data.source cubes --data.root {options.out} uses them"])


def synth(options: SynthArguments) -> None:
    """Writes a folder of synthetic scans in LUNA16's shape."""
    pixels = options.pixels
    frame = Frame((options.slices, pixels, pixels), np.array([2.5, 360 / pixels, 360 / pixels]))
    nodules = write_luna16_folder(options.root, options.scans, options.nodules, options.seed, frame, options.compressed)
    size = sum(path.stat().st_size for path in options.root.rglob("*") if path.is_file())
    voxels = f"{options.slices} × {pixels} × {pixels} voxels"
    print(f"{options.scans} scans of {voxels} with {nodules} nodules, {size / 1e6:.0f} MB: {options.root}")
    print(f"--data.source luna16 --data.root {options.root} uses them")
