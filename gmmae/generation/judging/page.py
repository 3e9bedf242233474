"""A judgement of generated nodules as JSON, as lines for the terminal, and as a page with figures."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gmmae.data.volumes import Nodules
from gmmae.generation.judging import figures as pictures
from gmmae.generation.judging import judge as judging
from gmmae.generation.judging import novelty as novelties
from gmmae.generation.judging.bootstrap import FEW_GROUPS, Estimate
from gmmae.generation.judging.features import CT_WINDOW, IS_COPIED, NAMES
from gmmae.generation.judging.judge import Comparison, Judgement, Scale
from gmmae.plotting import canvas, document, tables
from gmmae.plotting.tables import literal
from gmmae.system.files import whole_folder, write_text

JSON, MARKDOWN, HTML = "judgement.json", "judgement.md", "judgement.html"
WORST = 6
"""Number of shown features, those with the largest distance between the distributions."""
MAX_MIX_DIFFERENCE = 0.05
"""Maximum difference in a category's share without a remark."""
PAIRS = 8
"""Number of generated nodules shown with their nearest training nodules."""


def write(
    folder: Path,
    judgement: Judgement,
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
    window, unit_name = judgement.scale.window, unit(judgement.scale)
    compared = _compared(judgement, real, generated)
    sheet, key = pictures.contact_sheet(compared[0].values, compared[1].values, window, seed)
    remarks = [*_remarks(judgement, real, generated), *notes]
    with whole_folder(folder, mark=JSON) as place:

        def figure(name: str, drawing: pictures.Figure, caption: str) -> str:
            png, svg = canvas.save_both(drawing, place / "figures" / name.lower())
            return document.figure(name, caption, png, svg, place)

        text = [
            f"{_counts(judgement, real, generated)}.",
            tables.table(*table(judgement)),
            *(["\n".join(f"- {literal(remark[0].upper() + remark[1:])}." for remark in remarks)] if remarks else []),
            "**Real** compares equally many real nodules of other patients with the same ones, as a perfect generator would "
            "score. The 95 % intervals resample patients. A nodule without a patient counts as one. C2ST is the AUC of a "
            "logistic regression on 29 features of held-out nodules. Most values depend on the number of compared nodules. So "
            "judgements are comparable only for equal numbers (`--count`).",
            "`gmmae generate` gives each nodule the grey levels of one real nodule, and as many voxels of mask. So these "
            f"{IS_COPIED.sum()} features are real by construction: {literal(', '.join(np.array(NAMES)[IS_COPIED]))}. It also "
            "copies the spectrum, so gradient, laplacian and spectrum\\_\\* are nearly real. C2ST without the copied features "
            "judges the rest.",
            "Novelty is the median distance to the nearest training nodule, over that of real nodules outside the training "
            "set. NNsym is the same over 16 rotations and reflections. A nodule nearer than 99 % of the real ones is a copy.",
            "## Which are generated?",
            figure("Slices", sheet, f"Central axial slices, {window[0]:g} to {window[1]:g} in {unit_name}, in random order."),
            "## Distributions",
            figure(
                "Features",
                pictures.feature_histograms(_worst(judgement, *compared)),
                f"The {WORST} features with the largest differences: blue real, orange generated.",
            ),
        ]
        if judgement.novelty is not None and training is not None:
            caption = (
                f"{PAIRS} generated nodules, from the nearest to the farthest, each above its nearest training nodule. This is "
                "rotated or reflected for the best fit. The number is their distance as a share of the window."
            )
            neighbours = _neighbours(judgement, generated, training, window)
            text += ["## Nearest training nodules", figure("Neighbours", neighbours, caption)]
        text += ["## Key", f"Generated: {key}."]
        document.write("Judgement of generated nodules", "\n\n".join(text), place / MARKDOWN, place / HTML)
        write_text(place / JSON, json.dumps(plain(judgement, generated), indent=1) + "\n")
    return [folder / name for name in (HTML, MARKDOWN, JSON)]


def plain(judgement: Judgement, generated: Nodules) -> dict[str, object]:
    """Converts the judgement to JSON values. Estimates are lists of value, low and high."""
    result: dict[str, object] = {
        "masks": judgement.masks,
        "window": list(judgement.scale.window),
        "unit": unit(judgement.scale),
    }
    for name, comparison in (("generated", judgement.generated), ("real_vs_real", judgement.real_vs_real)):
        ks_tests = comparison.ks_tests
        result[name] = {
            "samples": comparison.samples,
            "patients": list(comparison.patients),
            **{key: list(getattr(comparison, key)) for key in ("c2st", "c2st_rest", "coverage")},
            "ks_share": ks_tests.share,
            "ks_share_corrected": ks_tests.corrected_share,
            "ks": {name: [float(d), float(p)] for name, d, p in zip(NAMES, ks_tests.statistic, ks_tests.p, strict=True)},
        }
    if judgement.novelty is not None:
        result["novelty"] = {
            "nn": list(judgement.novelty.plain),
            "nn_symmetric": list(judgement.novelty.symmetric),
            "copies": judgement.novelty.copies,
            "copy_distance": judgement.novelty.copy_distance,
            "nearest_distance": dict(zip(generated.names, judgement.novelty.nearest.distance.round(5).tolist(), strict=True)),
        }
    return result


def unit(scale: Scale) -> str:
    """Returns the name of the voxels' unit."""
    return "HU" if scale.hu else "the data's unit"


def table(judgement: Judgement) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns columns and rows of the table of values: generated beside real, with perfect values."""
    count = judgement.generated.samples

    def row(name: str, perfect: str, value: Callable[[Comparison], Estimate | float]) -> tuple[str, ...]:
        return (name, *(_shown(value(comparison)) for comparison in (judgement.generated, judgement.real_vs_real)), perfect)

    rows = [
        row("C2ST, AUC", "0.5: indistinguishable", lambda c: c.c2st),
        row(f"C2ST without {IS_COPIED.sum()} copied features", "0.5", lambda c: c.c2st_rest),
        row("features with KS p ≥ .05", "0.95", lambda c: c.ks_tests.share),
        row("the same, p corrected", "1", lambda c: c.ks_tests.corrected_share),
        row("coverage", "0.97", lambda c: c.coverage),
    ]
    if judgement.novelty is not None:
        ratios = ((judgement.novelty.plain, "novelty NN"), (judgement.novelty.symmetric, "novelty NNsym"))
        rows += [(name, _shown(ratio), "1", "1 (new patients); 0 means copies") for ratio, name in ratios]
        rows.append(("copies", f"{judgement.novelty.copies:.1%}", "1.0%", "1 % (new patients)"))
    columns = ("value", f"generated, n = {count}", f"real, n = {count}", "perfect")
    return columns, rows


def lines(judgement: Judgement, real: Nodules, generated: Nodules, notes: Sequence[str] = ()) -> list[str]:
    """Returns a summary for the terminal; `notes` are further remarks."""
    shown = tables.text_table(*table(judgement))
    return [_counts(judgement, real, generated), *shown.splitlines(), *_remarks(judgement, real, generated), *notes]


def _counts(judgement: Judgement, real: Nodules, generated: Nodules) -> str:
    """Returns the numbers of nodules and of compared nodules, which are equal in both columns."""
    count, patients = judgement.generated.samples, judgement.generated.patients[0]
    others = "the first half of the real ones" if judgement.novelty is None else "the real ones"
    return (
        f"{len(generated.names)} generated and {len(real.names)} real nodules; compared: {count} generated and {count} other "
        f"real nodules, each with the same {count} of {others} ({patients} patients, or scans if no patient is named)"
    )


def _shown(value: Estimate | float) -> str:
    """Formats a value, with its interval if it has one.

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


def _remarks(judgement: Judgement, real: Nodules, generated: Nodules) -> list[str]:
    """Returns the remarks about limits of the values."""
    remarks = []
    if judgement.novelty is None:
        remarks.append(
            "novelty is unknown, so the nodules may be copies: name the training nodules with --train, or use --split"
        )
    if not judgement.masks:
        remarks.append("shapes follow from intensity, because some nodules have no mask")
    if not judgement.scale.hu:
        low, high = CT_WINDOW
        remarks.append(f"values are not in HU, so their window was stretched to {low:g} to {high:g} for the features")
    fewest = min(*judgement.generated.patients, *judgement.real_vs_real.patients)
    if fewest < FEW_GROUPS:
        remarks.append(f"intervals are too narrow, because one set has only {fewest} patients")
    real, generated = _compared(judgement, real, generated)
    names = sorted({*real.categories, *generated.categories} - {""})
    shares = [[nodules.categories.count(name) / len(nodules.names) for name in names] for nodules in (real, generated)]
    if any(abs(one - two) > MAX_MIX_DIFFERENCE for one, two in zip(*shares, strict=True)):
        mix = ", ".join(f"{name} {one:.0%} and {two:.0%}" for name, one, two in zip(names, *shares, strict=True))
        remarks.append(f"shares of categories differ, which affects the values: of real and generated nodules {mix}")
    return remarks


def _compared(judgement: Judgement, real: Nodules, generated: Nodules) -> tuple[Nodules, Nodules]:
    """Returns the compared real and generated nodules."""
    return real.take(judgement.sets.reference), generated.take(judgement.sets.generated)


def _worst(judgement: Judgement, real: Nodules, generated: Nodules) -> list[pictures.Feature]:
    ks_tests = judgement.generated.ks_tests
    columns = np.argsort(-ks_tests.statistic, kind="stable")[:WORST]
    one, two = (judging.population(nodules, judgement.masks, judgement.scale).features for nodules in (real, generated))
    return [
        pictures.Feature(f"{NAMES[i]}: D {ks_tests.statistic[i]:.2f}, p {ks_tests.p[i]:.1g}", one[:, i], two[:, i])
        for i in columns
    ]


def _neighbours(judgement: Judgement, generated: Nodules, training: Nodules, window: tuple[float, float]) -> pictures.Figure:
    assert judgement.novelty is not None
    index, distance = judgement.novelty.nearest
    shown = np.argsort(distance, kind="stable")[np.linspace(0, len(distance) - 1, PAIRS).round().astype(int)]
    fitted = []
    for sample in shown:
        views = [view[0] for view in novelties.symmetries(training.values[index[sample]][None])]
        fitted.append(views[int(novelties.nearest(generated.values[sample][None], np.stack(views), window).index[0])])
    titles = [f"{distance[sample]:.3f}" for sample in shown]
    return pictures.neighbours(generated.values[shown], np.stack(fitted), titles, window)
