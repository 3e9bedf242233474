"""Figures of the documents that rest on `results/` are those of the files; what stands in several places is one number."""

import csv
import re
from decimal import ROUND_HALF_UP, Decimal
from statistics import median

import pytest

from tests import commands
from tests.documents.reading import PAGES, ROOT


def words_of(*paths):
    """The text of documents, with single spaces."""
    return " ".join(" ".join(path.read_text() for path in paths).split())


README = words_of(ROOT / "README.md")
ON_AN_H100 = words_of(ROOT / "docs" / "measurements" / "h100.md")
USERS = words_of(ROOT / "README.md", *(path for path in PAGES if path.parent == ROOT / "docs"))
"""The README and the pages of `docs` but the study."""


def rows(path):
    """The rows of a CSV file of the results."""
    with (ROOT / "results" / path).open(newline="") as file:
        return list(csv.reader(file))


def records(path):
    """The same by the names of the columns."""
    return commands.rows(ROOT / "results" / path)


def test_efficiencies_on_real_nodules():
    strong, others = rows("study/nodules_real/table_1.csv"), rows("study/nodules_real/table_2.csv")
    for (n, ours, _, _, paper), (_, weak, second, warmup, fourth, *_) in list(zip(strong, others, strict=True))[2:]:
        weak, warmup = (text.partition(" (")[0] for text in (weak, warmup))
        assert f"| {n} | {ours} | {paper} | {weak} | {second} | {warmup} | {fourth} |" in USERS


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_seeds_and_epochs_on_real_nodules(n):
    cells = []
    for scaling in ("strong", "weak", "linear-warmup", "linear"):
        runs = [row for row in records("study/nodules_real/cells.csv") if (row["scaling"], row["devices"]) == (scaling, str(n))]
        epochs = [int(row["epochs"]) for row in runs if row["outcome"] == "target_reached"]
        cells.append(f"{len(epochs)}/{len(runs)}" + (f": {median(epochs):g}" if epochs else ""))
    assert f"| {n}{'†' if n == 32 else ''} | {' | '.join(cells)} |" in USERS


def test_the_earlier_sweep():
    found = [row[1] for row in rows("luna16_nodules/table_1.csv")[2:]]
    assert f"gave {', '.join(found[:-1])} and {found[-1]} % for strong scaling" in USERS
    step = {
        row["samples"]: row["median (ms)"] for row in records("luna16_nodules/table_6.csv") if row["what"] == "training step"
    }
    assert f"{step['32']} ms for 32 samples, {float(step['8']):.1f} for 8, {float(step['1']):.1f} for one" in USERS


MADE = {
    "copy-paste: training nodules, flipped": "copy_paste",
    "the same, moved by a voxel": "moved",
    "SMOTE between voxels": "smote",
    "SMOTE between latent vectors": "smote_latent",
    "**generated**": "generated",
}
"""The rows of the table of generated nodules, by their names in the results."""


def rounded(text, digits):
    """A number as the documents write it: halves go up, and no 0 stands before the point."""
    return str(Decimal(text).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)).replace("0.", ".", 1)


@pytest.mark.parametrize("label", MADE)
def test_how_alike_generated_nodules_are(label):
    found = {row["figure"]: row for row in records("generation/fidelity_test.csv") if row["made"] == MADE[label]}
    mean = {name: rounded(row["mean"], 3 if name == "mmd2" else 2) for name, row in found.items()}
    low, high = (rounded(found["c2st"][f"patients_{end}"], 2) for end in ("low", "high"))
    cells = [f"{mean['c2st']} ({low}–{high})", *(mean[name] for name in ("c2st_masks", "mmd2", "ks"))]
    row = f"| {label} | {' | '.join(cells)} | {mean['nn']} / {mean['nn_sym']} |"
    assert row.replace("**", "") in USERS.replace("**", "")


@pytest.mark.parametrize("labels", ["50", "100", "200", "all"])
def test_what_generated_nodules_bring_a_classifier(labels):
    of = [row for row in records("generation/downstream_test.csv") if (row["task"], row["real"]) == ("malignancy", labels)]
    found = {row["made"]: row for row in of}

    def difference(made):
        row = found[made]
        sign = "+" if float(row["mean"]) > 0 else ""
        return f"{sign}{rounded(row['mean'], 3)} ({rounded(row['patients_low'], 3)} to {rounded(row['patients_high'], 3)})"

    against = [difference(f"{made} - real") for made in ("generated", "copy_paste", "repeated")]
    columns = (difference("generated - copy_paste"), rounded(found["real"]["mean"], 3), *against)
    assert f"{labels} | {' | '.join(columns)} |".replace("all", "all 244") in USERS
    assert float(found["generated - copy_paste"]["patients_low"]) < 0 < float(found["generated - copy_paste"]["patients_high"])


def test_the_steps_of_an_h100_are_those_of_the_file():
    steps = {
        (row["precision"], row["samples"], row["versions"]): f"{1e6 * float(row['seconds']):.0f}"
        for row in records("bench/h100_steps.csv")
    }
    full, tf32 = (steps[precision, "32", "jax 0.11.2"] for precision in ("float32", "TF32"))
    assert f"| {full} | {tf32} |" in USERS
    assert f"| {steps['TF32', '32', 'jax 0.12.0.1']} |" in USERS
    for (_, samples, versions), step in steps.items():
        assert f"**{step}** (" in ON_AN_H100, (samples, versions)


@pytest.mark.parametrize(
    ("figures", "page"),
    [
        (
            ["time of the choice over the best strategy's, on made-up clusters, mean (95 %) | 1.10 ", "always strong | 3.53 "],
            "planning",
        ),
        (["| gmmae | 6.70 ", "| PyTorch, `torch.compile` | 10.3 "], "speed"),
        (["**0.861 (0.856 to 0.865)**"], "segmentation"),
        (["**.68 (.63–.73)**"], "generation"),
    ],
)
def test_the_other_results_in_the_readme_are_those_of_their_pages(figures, page):
    text = words_of(ROOT / "docs" / f"{page}.md")
    assert [figure for figure in figures if figure not in text] == []
    for number in re.findall(r"\d*\.\d+(?: \(.*\))?", " ".join(figures).replace("(95 %)", "")):
        assert number in README
