"""The classifier's inputs, its figures against scikit-learn's, and gains against numbers worked manually."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from experiments import baselines, downstream, gains
from experiments.downstream import Task, choose, figure, inputs, labelled
from gmmae.data.volumes import Details
from tests.generation.nodules import balls


def two_classes(seed, samples, prefix):
    """Balls of which the malignant ones are brighter, and larger in mm."""
    benign, malignant = balls(seed, samples, f"{prefix}b"), balls(seed + 1, samples, f"{prefix}m", shift=100)
    values, masks = (np.concatenate([getattr(x, name) for x in (benign, malignant)]) for name in ("values", "masks"))
    names, groups = (getattr(benign, name) + getattr(malignant, name) for name in ("names", "groups"))
    mm = np.repeat([6.0, 9.0], samples)
    details = Details(names, np.zeros((2 * samples, 3)), 1.25 * mm, mm, 0 * mm)
    labels = ("benign",) * samples + ("malignant",) * samples
    return benign._replace(values=values, masks=masks, names=names, groups=groups, categories=labels, details=details)


def test_inputs_are_features_size_and_means_of_blocks():
    nodules = two_classes(0, 2, "x")
    found = inputs(nodules)
    assert found.shape == (4, 29 + 1 + 4**3)
    assert found[0, 29] == np.log(6.0)
    block = (np.clip(nodules.values[0, :2, 2:4, 6:], -1000, 400) + 1000) / 1400
    assert found[0, 30 + 0 * 16 + 1 * 4 + 3] == pytest.approx(block.mean())


def test_only_labelled_nodules_are_learnt_from():
    nodules = two_classes(0, 2, "x")
    found = labelled(nodules, ["a", "", "b", ""])
    assert found.names == (nodules.names[0], nodules.names[2])
    assert found.categories == ("a", "b")


def test_a_choice_has_some_of_each_class():
    labels = ["common"] * 95 + ["rare"] * 5
    for seed in range(5):
        index = choose(labels, 20, np.random.default_rng(seed))
        assert len(set(index)) == 20
        assert sum(labels[i] == "rare" for i in index) >= 3
    assert choose(labels, 100, np.random.default_rng(0)).tolist() == list(range(100))


def test_figures_are_scikit_learns_and_a_weight_is_a_repetition():
    rng = np.random.default_rng(0)
    scores = rng.random((40, 3)).round(1)  # with ties
    two, three = np.repeat(["a", "b"], 20), np.resize(["a", "b", "c"], 40)
    weight = np.stack([np.ones(40), rng.integers(0, 4, 40)])
    repeated = np.repeat(np.arange(40), weight[1].astype(int))
    auc = figure(scores[:, :2], two.tolist(), ["a", "b"], weight)
    accuracy = figure(scores, three.tolist(), ["a", "b", "c"], weight)
    guess = np.array(["a", "b", "c"])[scores.argmax(1)]
    for i, index in enumerate((np.arange(40), repeated)):
        assert auc[i] == pytest.approx(roc_auc_score(two[index] == "b", scores[index, 1]))
        assert accuracy[i] == pytest.approx(balanced_accuracy_score(three[index], guess[index]))


def test_a_run_has_a_row_for_each_number_draw_and_arm(monkeypatch):
    monkeypatch.setattr(downstream, "NUMBERS", (12, 0))
    monkeypatch.setattr(downstream, "DRAWS", 2)
    asked = []

    def copies(training, count, seed):
        asked.append((len(training.names), set(training.categories), count))
        return baselines.copy_paste(training, count, seed)

    make = downstream.one_by_one(copies)

    task = Task(two_classes(0, 15, "t"), two_classes(5, 10, "j"))
    rows = downstream.run(task, {"copy_paste": make}, seed=0)
    assert [(row["real"], row["draw"], row["arm"]) for row in rows] == [
        *((12, draw, arm) for draw in (0, 1) for arm in ("real", "copy_paste")),
        *((0, 0, arm) for arm in ("real", "copy_paste")),
    ]
    assert [count for _, _, count in asked] == [18, 18, 18, 18, 45, 45]  # three for each
    assert sum(number for number, *_ in asked[:2]) == 12  # of the chosen ones only
    assert all(len(classes) == 1 for _, classes, _ in asked)
    for row in rows:
        assert row["nn_sym"] == (None if row["arm"] == "real" else 0)
        scores = np.array(row["scores"])
        assert figure(scores, task.judged.categories, row["classes"], np.ones((1, 20)))[0] > 0.9
    assert downstream.run(task, {"copy_paste": make}, seed=0) == rows
    assert downstream.run(task, {"copy_paste": make}, seed=1) != rows


def test_gains_are_differences_of_the_same_seed_and_draws():
    labels, classes = ["a", "a", "b", "b"], ["a", "b"]

    def rows(arm, wins):
        """Returns scores with a number of right pairs among four."""
        of_b = {4: (0.8, 0.9), 3: (0.3, 0.9), 2: (0.1, 0.9)}[wins]
        row = {"real": 50, "draw": 0, "arm": arm, "classes": classes, "nn_sym": None if arm == "real" else wins / 4}
        return row | {"scores": [[1 - s, s] for s in (0.2, 0.4, *of_b)]}

    def seed(real, generated):
        table = [rows("real", real), rows("generated", generated), rows("copy_paste", 2), rows("smote", 2)]
        return {"run": "", "malignancy": {"labels": labels, "groups": [*"pqrs"], "rows": table}}

    found = {line["made"]: line for line in gains.summary([seed(2, 4), seed(3, 4)])}
    assert found["generated"]["mean"] == "1.0000"
    assert found["generated - real"]["mean"] == "0.3750"
    # Student's interval of .5 and .25: .375 ± 12.706 · .1768 / √2.
    assert float(found["generated - real"]["seeds_low"]) == pytest.approx(0.375 - 12.7062 * 0.125, abs=1e-3)
    assert found["generated - copy_paste"]["mean"] == "0.5000"
    assert found["generated - real"]["patients_low"] != ""
    assert "real - real" not in found
    assert [found[name]["nn_sym"] for name in ("real", "smote", "generated", "generated - real")] == ["", "0.500", "1.000", ""]


def test_values_of_the_nodules_themselves_are_averaged():
    def row(arm, scores):
        return {"real": 50, "draw": 0, "arm": arm, "classes": [], "scores": scores, "nn_sym": None}

    rows = [row("real", [0.8, 0.6]), row("generated", [0.9, 0.6])]
    found = {line["made"]: line for line in gains.summary([{"dice": {"labels": [], "groups": [*"pq"], "rows": rows}}])}
    assert found["real"]["mean"] == "0.7000"
    assert [found["generated - real"][name] for name in ("mean", "patients_low", "patients_high")] == [
        "0.0500",
        "0.0000",
        "0.1000",
    ]
