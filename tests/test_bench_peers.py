"""The reference computes the same as gmmae, and the comparison reads the answers of both."""

import math

import jax
import numpy as np
import pytest

from benchmarks.peers import backends, compare, gmmae_backend, problem, rounding, torch_layout, torch_trial
from benchmarks.peers.workers import start_workers
from benchmarks.spread import array_distance, distance
from gmmae.config.toml import to_toml
from tests.markdown import rows_of
from tests.small import small

SAMPLES, VALIDATION = 22, 6  # three steps of 8, 8 and 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("problem")
    (place / "small.toml").write_text(to_toml(small()))
    source = {"name": str(place / "small.toml"), "samples": SAMPLES, "validation": VALIDATION}
    problem.write(place, gmmae_backend.problem_of(**source))
    return place


@pytest.fixture(scope="module")
def known(folder):
    return problem.read(folder)


def test_the_reference_agrees_with_ours(known):
    pytest.importorskip("torch")
    ours, theirs = gmmae_backend.start(known), backends.load("torch", known)
    assert array_distance(theirs.gradient(), ours.gradient()) < 1e-4
    assert distance(theirs.losses(SAMPLES, 1), ours.losses(SAMPLES, 1)) < 1e-4
    assert theirs.evaluate() == pytest.approx(ours.evaluate(), rel=1e-4)
    back = torch_layout.to_ours(torch_layout.from_ours(known.params))
    assert all(np.array_equal(back[name], known.params[name]) for name in known.params)


@pytest.mark.slow
def test_rounding_alone_moves_the_first_steps_little(known):
    ours = gmmae_backend.start(known)
    assert rounding.apart(ours, ours, SAMPLES, 1)[0] < 1e-5
    assert max(rounding.gradient_apart(ours, ours, SAMPLES).values()) < 1e-2


@pytest.mark.slow
def test_ours_in_a_process_of_its_own_is_compared_and_timed(folder):
    with start_workers(["ours"], folder) as workers:
        assert workers[0].ask("facts")["versions"]["jax"] == jax.__version__
        agreement = compare.agreement(workers, folder, SAMPLES, steps=5)
        times = compare.timings(workers, batch=8, steps=2, samples=SAMPLES, turns=3, epochs=2)
    assert agreement["ours"] == {"losses": 0.0, "gradient": 0.0}
    assert [len(times[what]["ours"]) for what in ("step", "epoch")] == [3, 2]
    assert [len(rows_of(table)) for table in compare.timing_tables(times)] == [1, 1]


def test_disagreement_is_named_and_nan_is_one():
    distances = {"ours": {"losses": 0.0}, "torch": {"losses": 2e-4, "gradient": 1e-5}, "torch-compile": {"losses": math.nan}}
    eager, compiled = compare.disagreeing(distances)
    assert eager.startswith("PyTorch, eager: losses differ from ours by 2.0e-04")
    assert compiled.startswith("PyTorch, torch.compile: losses differ from ours by nan")


def test_settings_are_kept_that_help_alone_and_together():
    alone = [torch_trial.Trial((name,), (), [0.5] * 3, [1.0] * 3) for name in ("flush", "malloc")]
    together = torch_trial.Trial(("flush", "malloc"), (), [1.0] * 3, [1.0] * 3)
    assert torch_trial.chosen(alone[:1]) == ("flush",)
    assert torch_trial.chosen([*alone, together]) == ()
