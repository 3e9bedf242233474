"""A judgement of generated nodules as JSON, as lines for the terminal, and as a page with figures."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gmmae.data.grouped import FEW_GROUPS
from gmmae.generation.judging import figures
from gmmae.generation.judging.features import CT_WINDOW, IS_COPIED, NAMES
from gmmae.generation.judging.judge import Judgement
from gmmae.generation.judging.novelty import COPY_PERCENTILE, symmetries
from gmmae.plotting import canvas, document, tables
from gmmae.plotting.tables import literal
from gmmae.system.files import whole_folder, write_text

JSON, MARKDOWN, HTML = "judgement.json", "judgement.md", "judgement.html"
WORST = 6
"""Number of shown features, those that differ most."""
MAX_MIX_DIFFERENCE = 0.05
"""A category's share may differ this much without a remark."""
PAIRS = 8
"""Generated nodules shown with their nearest training nodules."""


def write(folder: Path, judgement: Judgement, seed: int, notes: Sequence[str] = ()) -> list[Path]:
    """Writes `judgement.json`, the page as Markdown and HTML, and its figures, in place of an earlier judgement."""
    unit = "HU" if judgement.hu else "the data's unit"
    low, high = judgement.window
    one, two = judgement.compared
    sheet, key = figures.contact_sheet(one.values, two.values, judgement.window, seed)
    remarks = [f"- {literal(remark[0].upper() + remark[1:])}." for remark in (*_remarks(judgement), *notes)]
    worst = sorted(judgement.generated.ks.items(), key=lambda item: -item[1][0])[:WORST]
    rows = [
        (name, f"{d:.2f}", f"{p:.2g}", *(f"{features[:, NAMES.index(name)].mean():.3g}" for features in judgement.features))
        for name, (d, p) in worst
    ]
    with whole_folder(folder, mark=JSON) as place:

        def figure(name: str, drawing: figures.Figure, caption: str) -> str:
            return document.figure(name, caption, *canvas.save_both(drawing, place / "figures" / name.lower()), place)

        text = [
            f"{_counts(judgement)}.",
            tables.table(*table(judgement)),
            "\n".join(remarks),
            "**Real** compares equally many real nodules of other patients with the same ones, as a perfect generator would "
            "score. The 95 % intervals resample patients. A nodule without a patient counts as one. C2ST is the AUC of a "
            "logistic regression on 29 features of held-out nodules. KS is the share of features whose Kolmogorov-Smirnov test "
            "has p ≥ .05, also corrected for their number. Most values depend on the number of compared nodules. So "
            "judgements are comparable only for equal numbers (`--count`).",
            "`gmmae generate` gives each nodule the grey levels of one real nodule, and as many voxels of mask. So these "
            f"{IS_COPIED.sum()} features are real by construction: {literal(', '.join(np.array(NAMES)[IS_COPIED]))}. It also "
            "copies the spectrum, so gradient, laplacian and spectrum\\_\\* are nearly real. The second C2ST judges the rest.",
            "Novelty is the median distance to the nearest training nodule, over that of real nodules outside the training "
            "set. NNsym is the same over 16 rotations and reflections. A nodule nearer than 99 % of the real ones is a copy.",
            "## Which are generated?",
            figure("Slices", sheet, f"Central axial slices, {low:g} to {high:g} in {unit}, in random order."),
            "## The features that differ most",
            tables.table(("feature", "largest distance", "p", "mean of real", "mean of generated"), rows),
        ]
        if judgement.nearest is not None:
            index, distance, turn = judgement.nearest
            shown = np.argsort(distance, kind="stable")[np.linspace(0, len(distance) - 1, PAIRS).round().astype(int)]
            _, made, training = judgement.given
            assert training is not None
            turned = [symmetries(made.values)[turn[i]][[i]] for i in shown]
            volumes, titles = np.concatenate([*turned, training.values[index[shown]]]), [f"{distance[i]:.3f}" for i in shown]
            slices = volumes[:, volumes.shape[1] // 2]
            drawing = figures.sheet(slices, judgement.window, ("generated", "training"), titles)
            caption = (
                f"{PAIRS} generated nodules, from the nearest to the farthest, each above its nearest training nodule. They "
                "are rotated or reflected for the best fit. The number is the distance as a share of the window."
            )
            text += ["## Nearest training nodules", figure("Neighbours", drawing, caption)]
        text += ["## Key", f"Generated: {key}."]
        document.write("Judgement of generated nodules", "\n\n".join(text), place / MARKDOWN, place / HTML)
        plain = {"masks": judgement.masks, "window": judgement.window, "unit": unit}
        for name in ("generated", "real_vs_real", "novelty"):
            if part := getattr(judgement, name):
                plain[name] = part._asdict()
        write_text(place / JSON, json.dumps(plain, indent=1) + "\n")
    return [folder / name for name in (HTML, MARKDOWN, JSON)]


def table(judgement: Judgement) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of the values: generated, real, and perfect ones."""
    n = len(judgement.given[0].names)  # a percentile of these is the limit of copies
    both, novelty, number = (judgement.generated, judgement.real_vs_real), judgement.novelty, "{:.2f}".format
    rows = [
        ("C2ST, AUC", *(one.c2st.text(number) for one in both), "0.5"),
        ("C2ST, not copied", *(one.c2st_rest.text(number) for one in both), "0.5"),
        ("KS p ≥ .05", *(number(one.ks_share) for one in both), "0.95"),
        ("KS, corrected", *(number(one.ks_share_corrected) for one in both), "1"),
        ("coverage", *(one.coverage.text(number) for one in both), "0.97"),
    ]
    if novelty is not None:
        rows += [
            ("novelty NN", novelty.nn.text(number), "1", "1; copies: 0"),
            ("novelty NNsym", novelty.nn_symmetric.text(number), "1", "1; copies: 0"),
            ("copies", f"{novelty.copies:.1%}", "–", f"{(1 + COPY_PERCENTILE / 100 * (n - 1)) / (n + 1):.1%}"),
        ]
    return ("value", "generated", "real", "perfect"), rows


def lines(judgement: Judgement, notes: Sequence[str] = ()) -> list[str]:
    """A summary for the terminal; `notes` are further remarks."""
    return [_counts(judgement), tables.text_table(*table(judgement)), *_remarks(judgement), *notes]


def _counts(judgement: Judgement) -> str:
    real, generated, training = judgement.given
    count, patients = judgement.generated.samples, judgement.generated.patients[0]
    others = "the first half of the real ones" if training is None else "the real ones"
    return (
        f"{len(generated.names)} generated and {len(real.names)} real nodules; compared: {count} generated and {count} other "
        f"real nodules, each with the same {count} of {others} ({patients} patients, or scans if no patient is named)"
    )


def _remarks(judgement: Judgement) -> list[str]:
    remarks = []
    if judgement.novelty is None:
        remarks.append(
            "novelty is unknown, so the nodules may be copies: name the training nodules with --train, or use --split"
        )
    if not judgement.masks:
        remarks.append("shapes follow from intensity, because some nodules have no mask")
    if not judgement.hu:
        low, high = CT_WINDOW
        remarks.append(f"values are not in HU, so their window was stretched to {low:g} to {high:g} for the features")
    fewest = min(*judgement.generated.patients, *judgement.real_vs_real.patients)
    if fewest < FEW_GROUPS:
        remarks.append(f"intervals are too narrow, because one set has only {fewest} patients")
    real, generated = (nodules.categories for nodules in judgement.compared)
    names = sorted({*real, *generated} - {""})
    shares = [(name, real.count(name) / len(real), generated.count(name) / len(generated)) for name in names]
    if any(abs(one - two) > MAX_MIX_DIFFERENCE for _, one, two in shares):
        mix = ", ".join(f"{name} {one:.0%} and {two:.0%}" for name, one, two in shares)
        remarks.append(f"shares of categories differ, which affects the values: of real and generated nodules {mix}")
    return remarks
