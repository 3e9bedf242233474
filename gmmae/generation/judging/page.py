"""A judgement of generated nodules: as plain data, in a dozen lines, and as one page with pictures."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gmmae.data.volumes import Nodules
from gmmae.generation.judging import figures as pictures
from gmmae.generation.judging import judge as judging
from gmmae.generation.judging import novelty
from gmmae.generation.judging.bootstrap import FEW_GROUPS, Estimate
from gmmae.generation.judging.features import CT_WINDOW, NAMES
from gmmae.generation.judging.judge import Judgement, Scale
from gmmae.plotting import canvas, document
from gmmae.plotting.document import Block, Bullets, Figure, Heading, Paragraph
from gmmae.plotting.tables import Table
from gmmae.system.files import whole_folder, write_text

JSON, MARKDOWN, HTML = "judgement.json", "judgement.md", "judgement.html"
WORST = 6
"""Features shown: those with the largest distance between the distributions."""
MIX = 0.05
"""The difference in a category's share that is told."""
PAIRS = 8
"""Generated nodules shown with their nearest."""


def write(
    folder: Path,
    found: Judgement,
    real: Nodules,
    generated: Nodules,
    training: Nodules | None,
    seed: int,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Writes `judgement.json`, the page as Markdown and HTML, and its figures, in place of an earlier judgement.

    Raises:
      InputError: the folder holds something else, or cannot be written.
    """
    with whole_folder(folder, mark=JSON) as place:
        write_text(place / JSON, json.dumps(plain(found, generated), indent=1) + "\n")
        blocks = _blocks(place / "figures", found, real, generated, training, seed, notes)
        write_text(place / MARKDOWN, document.markdown(blocks, place))
        write_text(place / HTML, document.html("Generated nodules judged", blocks))
    return [folder / name for name in (HTML, MARKDOWN, JSON)]


def plain(found: Judgement, generated: Nodules) -> dict[str, Any]:
    """The judgement as what JSON can hold; intervals are lists of value, low and high."""
    result: dict[str, Any] = {"masks": found.masks, "window": list(found.scale.window), "unit": unit(found.scale)}
    for name, comparison in (("generated", found.generated), ("floor", found.floor)):
        marginals = comparison.marginals
        result[name] = {
            "samples": comparison.samples,
            "patients": list(comparison.patients),
            **{key: list(getattr(comparison, key)) for key in ("c2st", "mmd2", "density", "coverage")},
            "ks_share": marginals.share,
            "ks_share_corrected": marginals.corrected_share,
            "value_distance": comparison.value_distance,
            "ks": {name: [float(d), float(p)] for name, d, p in zip(NAMES, marginals.statistic, marginals.p, strict=True)},
        }
    if found.novelty is not None:
        result["novelty"] = {
            "nn": list(found.novelty.plain),
            "nn_symmetric": list(found.novelty.symmetric),
            "copies": found.novelty.copies,
            "copy_distance": found.novelty.copy_distance,
            "nearest_distance": dict(zip(generated.names, found.novelty.nearest.distance.round(5).tolist(), strict=True)),
        }
    return result


def unit(scale: Scale) -> str:
    """The name of the voxels' unit."""
    return "HU" if scale.hu else "the data's unit"


def table(found: Judgement) -> Table:
    """The figures, generated beside real, with what is perfect and where the interval lies."""
    count = found.generated.samples

    def row(name: str, meaning: str, of: Any) -> tuple[str, ...]:
        return (name, *(_shown(of(comparison)) for comparison in (found.generated, found.floor)), meaning)

    rows = [
        row("C2ST, AUC", "0.5: cannot be told apart", lambda c: c.c2st),
        row("MMD²", "0", lambda c: c.mmd2),
        row("features with KS p ≥ .05", "0.95", lambda c: c.marginals.share),
        row("the same, corrected", "1", lambda c: c.marginals.corrected_share),
        row("density", "1", lambda c: c.density),
        row("coverage", "0.97", lambda c: c.coverage),
        row("histograms of voxels, apart by", f"0, in {unit(found.scale)}", lambda c: c.value_distance),
    ]
    if found.novelty is not None:
        ratios = ((found.novelty.plain, "novelty NN"), (found.novelty.symmetric, "novelty NNsym"))
        rows += [(name, _shown(ratio), "1", "1: as new as a new patient; 0: copies") for ratio, name in ratios]
        rows.append(("copies", f"{found.novelty.copies:.1%}", "5.0%", "5 %: as many as of new patients"))
    columns = ("figure", f"generated, n = {count}", f"real, n = {count}", "perfect")
    return Table("judgement", "Generated nodules judged", columns, tuple(rows))


def lines(found: Judgement, real: Nodules, generated: Nodules, notes: Sequence[str] = ()) -> list[str]:
    """A summary for the terminal; `notes` are further remarks."""
    figures = table(found)
    rows = [("", *figures.columns[1:]), *figures.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    text = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows
    ]
    return [_counts(found, real, generated), *text, *_remarks(found, real, generated), *notes]


def _counts(found: Judgement, real: Nodules, generated: Nodules) -> str:
    """How many there are, and how many are compared: the same number in both columns."""
    count, patients = found.generated.samples, found.generated.patients[0]
    others = "the first half of the real ones" if found.novelty is None else "the real ones"
    return (
        f"{len(generated.names)} generated, {len(real.names)} real nodules; compared: {count} generated and {count} other real "
        f"ones, each with the same {count} of {others} ({patients} patients, or scans where none is named)"
    )


def _shown(value: Estimate | float) -> str:
    """
    >>> _shown(Estimate(0.71234, 0.6, 0.8)), _shown(Estimate(0.01234, -0.001, 0.02))
    ('0.71 (0.60–0.80)', '0.012 (-0.001–0.020)')
    >>> _shown(0.0123), _shown(12.0), _shown(123.4)
    ('0.012', '12', '123')
    """
    if not isinstance(value, Estimate):
        return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
    digits = 3 if abs(value.value) < 0.1 else 2
    middle, low, high = (f"{number:.{digits}f}" for number in value)
    return middle if math.isnan(value.low) else f"{middle} ({low}–{high})"


def _remarks(found: Judgement, real: Nodules, generated: Nodules) -> list[str]:
    """What a reader has to know beside the figures."""
    remarks = []
    if found.novelty is None:
        remarks.append(
            "novelty was not judged: likeness alone may be copying; name the training nodules with --train, or use --split"
        )
    if not found.masks:
        remarks.append("shapes are those of intensity masks, because not all have masks")
    if not found.scale.hu:
        low, high = CT_WINDOW
        remarks.append(f"features are of values stretched so that the window is {low:g} to {high:g}, since these are not in HU")
    fewest = min(*found.generated.patients, *found.floor.patients)
    if fewest < FEW_GROUPS:
        remarks.append(f"intervals are too narrow, because one of the sets is of {fewest} patients only")
    real, generated = _compared(found, real, generated)
    names = sorted({*real.categories, *generated.categories} - {""})
    shares = [[nodules.categories.count(name) / len(nodules.names) for name in names] for nodules in (real, generated)]
    if any(abs(one - two) > MIX for one, two in zip(*shares, strict=True)):
        told = ", ".join(f"{name} {one:.0%} and {two:.0%}" for name, one, two in zip(names, *shares, strict=True))
        remarks.append(f"the mix of categories differs, which the figures count as unlikeness: of real and generated {told}")
    return remarks


def _compared(found: Judgement, real: Nodules, generated: Nodules) -> tuple[Nodules, Nodules]:
    """The real and the generated nodules that the figures are of."""
    return real.take(found.sets.reference), generated.take(found.sets.generated)


def _blocks(
    place: Path,
    found: Judgement,
    real: Nodules,
    generated: Nodules,
    training: Nodules | None,
    seed: int,
    notes: Sequence[str],
) -> list[Block]:
    def figure(name: str, drawn: Any, caption: str) -> Figure:
        return Figure(name, caption, *canvas.save_both(drawn, place / name.lower().replace(" ", "_")))

    window, named = found.scale.window, unit(found.scale)
    compared = _compared(found, real, generated)
    one, two = (some.values for some in compared)
    sheet, key = pictures.unnamed(one, two, window, seed)
    distance = f"{_shown(found.generated.value_distance)} {named} apart (real: {_shown(found.floor.value_distance)})"
    histograms = pictures.value_histograms(one, two, window, named, distance)
    worst = _worst(found, *compared)
    remarks = [*_remarks(found, real, generated), *notes]
    blocks: list[Block] = [
        Heading("Generated nodules judged", 1),
        Paragraph(f"{_counts(found, real, generated)}."),
        table(found),
        *([Bullets(tuple(remark[0].upper() + remark[1:] + "." for remark in remarks))] if remarks else []),
        Paragraph(
            "**Real** stands for as many real nodules of other patients against the same ones: what a perfect generator would "
            "get. Intervals are 95 %, by resampling patients; a nodule without a patient counts as one. C2ST: a logistic "
            "regression tells the sets apart by 29 features, on nodules that it has not seen. Most figures change with the "
            "number that is compared: two judgements are comparable only where it is the same (`--count`)."
        ),
        Paragraph(
            "Novelty: the median distance to the nearest training nodule, over that of real nodules that were not in training; "
            "NNsym compares in 16 flips and turns. A nodule that is nearer than 95 % of those is a copy."
        ),
        Heading("Which are generated?", 2),
        figure("Slices", sheet, f"Central axial slices, {window[0]:g} to {window[1]:g} in {named}, in random order."),
        Heading("Distributions", 2),
        figure("Values", histograms, "Voxels by value, of the nodules that are compared."),
        figure(
            "Features", pictures.feature_histograms(worst), f"The {WORST} features that differ most; blue real, red generated."
        ),
    ]
    if found.novelty is not None and training is not None:
        drawn = _neighbours(found, generated, training, window)
        text = (
            f"{PAIRS} generated nodules, from the nearest to the farthest, above the training nodule that is nearest to each, "
            "flipped and turned as it fits best; the number is their distance in shares of the window."
        )
        blocks += [Heading("Nearest training nodules", 2), figure("Neighbours", drawn, text)]
    return [*blocks, Heading("Key", 2), Paragraph(f"Generated are {key}.")]


def _worst(found: Judgement, real: Nodules, generated: Nodules) -> list[pictures.Feature]:
    marginals = found.generated.marginals
    columns = np.argsort(-marginals.statistic, kind="stable")[:WORST]
    one, two = (judging.population(some, found.masks, found.scale).features for some in (real, generated))
    return [
        pictures.Feature(f"{NAMES[i]}: D {marginals.statistic[i]:.2f}, p {marginals.p[i]:.1g}", one[:, i], two[:, i])
        for i in columns
    ]


def _neighbours(found: Judgement, generated: Nodules, training: Nodules, window: tuple[float, float]) -> Any:
    assert found.novelty is not None
    index, distance = found.novelty.nearest
    chosen = np.argsort(distance, kind="stable")[np.linspace(0, len(distance) - 1, PAIRS).round().astype(int)]
    fitting = []
    for sample in chosen:
        turns = [turn[0] for turn in novelty.symmetries(training.values[index[sample]][None])]
        fitting.append(turns[int(novelty.nearest(generated.values[sample][None], np.stack(turns), window).index[0])])
    titles = [f"{distance[sample]:.3f}" for sample in chosen]
    return pictures.neighbours(generated.values[chosen], np.stack(fitting), titles, window)
