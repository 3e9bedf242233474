import pytest

from gmmae.sweep.report import outcomes, results
from tests import sweeps
from tests.sweeps import GRID


@pytest.fixture
def found(tmp_path):
    return results.read(sweeps.small(tmp_path), tmp_path, None)


def test_misses_are_told_by_kind_with_their_losses(found):
    assert [text for text, _ in outcomes.misses(found.group("linear", 2))] == ["collapsed 3× at 0.01480 to 0.01680"]
    assert [text for text, _ in outcomes.misses(found.group("linear", 4))] == ["diverged 3× in epoch 1"]
    assert [text for text, _ in outcomes.misses(found.group("linear-warmup", 4))] == [
        "out of epochs 1× at 0.002000 (best 0.002000)"
    ]
    assert outcomes.misses(found.group("strong", 4)) == []
    assert outcomes.reached(found.group("linear-warmup", 2)) == "1 of 3"


def test_kinds_are_kept_apart(found):
    told = outcomes.misses([run for n in GRID.devices for run in found.group("linear-warmup", n)])
    assert [(text.split()[0], {run.key.devices for run in runs}) for text, runs in told] == [("collapsed", {2}), ("out", {4})]


def test_a_time_limit_and_a_run_without_losses_are_told_too(tmp_path):
    key = sweeps.RunKey("strong", 1, 0)
    sweeps.add(GRID, tmp_path, key, "time_limit", 7, 0.003, best_val_loss=None)
    run = results.read(GRID, tmp_path, None).runs[0]
    assert outcomes.misses([run])[0][0] == "time limit 1× after 7 epochs at 0.003000 (best unknown)"
