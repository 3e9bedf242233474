from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gmmae.plotting.document import Figure, Paragraph
from gmmae.sweep.grid import RunKey
from gmmae.sweep.report import results, strategy_figures
from tests import sweeps
from tests.sweeps import FLAT, GRID, PASSES, STEPS


@pytest.fixture
def drawn(monkeypatch):
    """What the figures were asked to show, in place of drawing it."""
    asked = {}

    def keep(name):
        return lambda what, **words: asked.update(words, what=what, drawn_by=name)

    monkeypatch.setattr(strategy_figures.comparison, "time_to_target", keep("time_to_target"))
    for name in ("warmup_curve", "losses_by_devices"):
        monkeypatch.setattr(strategy_figures.loss_curves, name, keep(name))
    monkeypatch.setattr(strategy_figures.canvas, "save_both", lambda figure, stem: (Path("unused.png"), Path("unused.svg")))
    return asked


def test_figure_2_has_a_line_for_each_arm(projected, drawn, tmp_path):
    figure = strategy_figures.time_to_target(projected, tmp_path)
    assert isinstance(figure, Figure)
    assert drawn["title"].endswith("(projected to Flat, with steps of cpu)")
    assert "Projected to Flat, with steps of cpu, not measured there." in figure.caption
    assert drawn["y_label"] == "projected time to target (s)"
    by_label = {series.label: series for series in drawn["what"]}
    assert by_label["Strong scaling"].median == pytest.approx((100.0, 218.0, 277.0))
    warmup = by_label["Linear rule + warmup"]
    assert (warmup.at, warmup.reached, warmup.runs) == ((1, 2, 4), (3, 1, 0), (3, 3, 1))
    assert warmup.median[1:] == (np.inf, np.inf)
    assert np.isnan(warmup.low[2])  # one run has no interval


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        ({1: "target_reached", 4: "collapsed", 8: "target_reached"}, 8),  # the paper's
        ({1: "target_reached", 2: "collapsed", 4: "diverged"}, 2),  # the fewest that missed
        ({1: "target_reached", 2: "target_reached"}, 2),  # the most
    ],
)
def test_figure_3_shows_the_papers_run_or_the_most_telling_one(drawn, tmp_path, present, chosen):
    config = replace(GRID, devices=(1, 2, 4, 8), seeds=(0,))
    sweeps.add_step_times(tmp_path, 1, STEPS | {4: 0.1}, PASSES | {32: 0.3})
    for n, outcome in present.items():
        sweeps.add(config, tmp_path, RunKey("linear-warmup", n, 0), outcome, 8, 0.005)
    figure = strategy_figures.warmup(results.read(config, tmp_path, FLAT), tmp_path)
    assert isinstance(figure, Figure)
    assert f"on {chosen} devices, seed 0" in figure.caption
    assert (drawn["drawn_by"], drawn["first_epochs"]) == ("warmup_curve", 5)
    assert drawn["what"].time_s[-1] == pytest.approx(8 * drawn["epoch_s"])


def test_figure_4_tells_that_curves_of_one_path_differ_in_time_only(projected, drawn, tmp_path):
    figure = strategy_figures.losses(projected, "strong", 4, tmp_path)
    assert isinstance(figure, Figure)
    assert "One optimisation path, computed once per seed. The curves differ in time only." in figure.caption
    one, two, _ = drawn["what"]
    assert (one.val_loss == two.val_loss).all()
    assert (one.time_s[-1], two.time_s[-1]) == pytest.approx((100.0, 218.0))
    weak = strategy_figures.losses(projected, "weak", 5, tmp_path)
    assert isinstance(weak, Figure)
    assert "One optimisation path" not in weak.caption


def test_without_times_curves_are_drawn_against_epochs(projected, drawn, tmp_path):
    found = results.read(GRID, projected.folder.root, None)
    assert isinstance(strategy_figures.losses(found, "weak", 5, tmp_path), Figure)
    assert drawn["x_label"] == "epoch"
    assert drawn["what"][1].time_s.tolist() == list(range(1, 41))
    assert isinstance(strategy_figures.warmup(found, tmp_path), Figure)
    assert drawn["drawn_by"] == "losses_by_devices"
    left_out = strategy_figures.time_to_target(found, tmp_path)
    assert isinstance(left_out, Paragraph)
    assert left_out.text == "Fig. 2 is left out: there are no times to the target."


def test_what_is_not_there_is_left_out_with_a_sentence(tmp_path):
    nothing = results.read(GRID, tmp_path, FLAT)
    for make, sentence in (
        (strategy_figures.samples, "no run of the strategy strong has left snapshots"),
        (strategy_figures.warmup, "no run of the linear rule with warmup has left a history"),
        (lambda found, folder: strategy_figures.losses(found, "weak", 5, folder), "no run of weak scaling has left a history"),
    ):
        block = make(nothing, tmp_path)
        assert isinstance(block, Paragraph)
        assert sentence in block.text


def test_figure_1_shows_a_strong_runs_snapshots(tmp_path):
    config = replace(GRID, devices=(2,), seeds=(0,))
    sweeps.reach(config, tmp_path, RunKey("strong", 2, 0), 3)
    found = results.read(config, tmp_path, None)
    snapshots = found.folder.run("strong-n2-seed0").snapshots
    snapshots.mkdir(parents=True)
    for epoch in (0, 3):
        curve = np.linspace(0.1, 1, 8, dtype=np.float32)[None]
        mixture = {"weights": np.ones((1, 1)), "means": np.zeros((1, 1, 1)), "covariances": np.ones((1, 1, 1, 1))}
        arrays = {name: value.astype(np.float32) for name, value in mixture.items()}
        np.savez(snapshots / f"epoch_{epoch:04}.npz", inputs=curve, density=curve, epoch=epoch, val_loss=0.1, **arrays)
    figure = strategy_figures.samples(found, tmp_path)
    assert isinstance(figure, Figure)
    assert "after 0 and 3 epochs" in figure.caption
    assert "Strong scaling on 2 devices, seed 0" in figure.caption
    assert figure.png.exists()
    assert figure.svg.exists()


def caption_of(block) -> str:
    assert isinstance(block, Figure)
    return block.caption


def test_figures_mark_the_runs_whose_batch_is_clipped_and_explain_the_mark(tmp_path, drawn):
    """Tests 32 devices, which ask for 1024 of 512 samples."""
    config = replace(GRID, scaling=("strong", "weak", "linear-warmup"), devices=(1, 32), seeds=(0,))
    sweeps.add_step_times(tmp_path, 1, {1: 0.1, 16: 0.3, 32: 0.5}, {8: 0.1, 256: 2.0})
    for scaling in config.scaling:
        for n in config.devices:
            sweeps.reach(config, tmp_path, RunKey(scaling, n, 0), 20)
    found = results.read(config, tmp_path, FLAT)
    explained = "† Batch capped to the 512 training samples. Where the learning rate scales with the batch, k = 512 / 32 = 16."

    figure = strategy_figures.time_to_target(found, tmp_path)
    assert [series.label for series in drawn["what"]] == ["Strong scaling", "Weak scaling†", "Linear rule + warmup†"]
    assert explained in caption_of(figure)
    assert "Numbers above the axes" not in caption_of(figure)  # every run reached the target
    figure = strategy_figures.losses(found, "weak", 5, tmp_path)
    assert [course.label for course in drawn["what"]] == ["1 device", "32 devices†"]
    assert explained in caption_of(figure)
    figure = strategy_figures.warmup(found, tmp_path)
    assert "on 32 devices†" in drawn["title"]
    assert explained in caption_of(figure)
    assert "†" not in caption_of(strategy_figures.losses(found, "strong", 4, tmp_path))
