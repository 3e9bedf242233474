"""The references compute the same as gmmae: converted parameters, losses, gradients. The comparison reads their answers."""

import dataclasses
import doctest
import importlib
import importlib.util
import json
import math
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import hardware
from benchmarks.child import ROOT
from benchmarks.peers import backends, compare, gmmae_backend, problem, rounding, torch_layout, torch_trial, workers
from benchmarks.peers.backends import Place
from benchmarks.peers.quadratic import coefficients
from benchmarks.peers.worker import answer, to_target
from benchmarks.peers.workers import idle_shares, start_workers
from benchmarks.spread import array_distance, distance
from gmmae.config.toml import to_toml
from gmmae.models import mixture
from gmmae.scaling.strategies import STRATEGIES, LearningRateSpec
from gmmae.system.errors import InputError
from tests.small import small

SAMPLES, VALIDATION = 22, 6  # three steps of 8, 8 and 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("problem")
    (place / "small.toml").write_text(to_toml(small()), encoding="utf-8")
    source = {"name": str(place / "small.toml"), "samples": SAMPLES, "validation": VALIDATION}
    problem.write(place, gmmae_backend.problem_of(**source))
    return place


@pytest.fixture(scope="module")
def known(folder):
    return problem.read(folder)


@pytest.fixture(scope="module")
def own(known):
    peer = gmmae_backend.start(known, Place())
    gradient = peer.gradient()
    return peer.losses(SAMPLES, 1), peer.evaluate(), gradient


@pytest.mark.parametrize(
    "module",
    ["spread", "flops", "hardware", "options", "target", "__main__", "peers.problem", "peers.backends", "peers.compare"],
)
def test_the_examples_in_docstrings(module):
    assert doctest.testmod(importlib.import_module(f"benchmarks.{module}")).failed == 0


def test_a_problem_comes_back_from_disk_as_it_was(folder, known):
    made = gmmae_backend.problem_of(**known.source)
    assert known._replace(train=0, validation=0, params=0) == made._replace(train=0, validation=0, params=0)
    for ours_again, first in ((known.train, made.train), (known.validation, made.validation), (known.params, made.params)):
        assert ours_again.keys() == first.keys()
        assert all(np.array_equal(ours_again[name], first[name]) for name in first)


@pytest.mark.parametrize(
    ("change", "wanted", "got"),
    [
        ("model__activation", "'relu'", "silu"),
        ("model__decoder", "'dense'", "lattice"),
        ("stop__mode", "'auto'", "max"),
        ("optim__warmup_epochs", "0", 1),
        ("optim__cosine_epochs", "none", 10),
        ("optim__decay_epochs", "()", (3,)),
    ],
)
def test_a_problem_that_the_references_do_not_have_is_refused(tmp_path, change, wanted, got):
    path = tmp_path / "changed.toml"
    path.write_text(to_toml(small(**{change: got})), encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(f"{change.replace('__', '.')} = {wanted}; got {got!r}")):
        gmmae_backend.problem_of(name=str(path))


def test_the_rate_of_the_u_net_is_constant_as_the_references_rate_is():
    """`unet_quick` has a ramp and a cosine, and `unet` falls by steps: with them, PyTorch's second loss was 15 % off."""
    for name in ("unet_quick", "unet"):
        config = gmmae_backend.configuration(name, 20, 4)
        rates = STRATEGIES[config.scaling].learning_rate(config.optim, 1.0)
        assert rates == LearningRateSpec(
            config.optim.learning_rate, config.optim.learning_rate, decay_factor=rates.decay_factor
        )


def test_losses_are_compared_as_long_as_rounding_alone_keeps_them_together(known):
    peer = gmmae_backend.GmmaeBackend(gmmae_backend.configuration(**known.source), known.params)
    exact = gmmae_backend.GmmaeBackend(gmmae_backend.configuration(**known.source | {"precision": "float64"}), known.params)
    apart = rounding.apart(peer, exact, SAMPLES, 5)
    assert len(apart) == 5
    assert max(rounding.apart(exact, exact, SAMPLES, 3)) < 1e-12
    assert 0 < max(apart) < 1e-5  # float32, a few steps of a tiny model
    assert compare.comparable(apart, 1e-4) == 5
    assert compare.comparable([1e-7, 2e-6, 1.1e-5, 0.0], 1e-4) == 2
    assert compare.comparable([1e-7, 2e-6, math.nan], 1e-4) == 2
    assert compare.comparable([1.1e-5, 1e-7], 1e-4) == 0

    with pytest.raises(InputError, match="the loss of the first step must be finite in gmmae; got a difference of nan"):
        compare.comparable([math.nan, 1e-7], 1e-4)


def test_a_bias_at_the_kink_of_relu_is_left_out_of_the_gradient(tmp_path):
    """The first gradient of volumes with empty parts differed by 3e-3 in float64, in the first bias only."""
    (tmp_path / "small.toml").write_text(to_toml(small()), encoding="utf-8")
    source = {"name": str(tmp_path / "small.toml"), "samples": SAMPLES, "validation": VALIDATION}
    peer = gmmae_backend.GmmaeBackend(gmmae_backend.configuration(**source, precision="float64"))
    full = rounding.gradient_apart(peer, peer, SAMPLES)
    assert compare.ambiguous(full, 1e-4) == []
    volumes = peer.setup.data.train
    binary = np.where(volumes > np.quantile(volumes, 0.9), 1.0, 0.0)
    peer.setup = peer.setup._replace(data=dataclasses.replace(peer.setup.data, train=binary))
    found = compare.ambiguous(rounding.gradient_apart(peer, peer, SAMPLES), 1e-4)
    assert "encoder/Conv_0/bias" in found
    assert all(name.endswith("/bias") for name in found)  # kernels are multiplied by the empty part, which is 0


def test_a_gradient_that_is_not_finite_is_no_agreement():
    wanted = {"kernel": np.ones(1), "bias": np.ones(1)}
    assert math.isnan(array_distance({"kernel": np.array([2.0]), "bias": np.array([np.nan])}, wanted))


class Fixed:
    """Worker whose losses are given, and whose gradient has one number."""

    def __init__(self, name, losses, gradient):
        self.name, self.losses, self.arrays, self.processes = name, losses, {"kernel": np.array([gradient])}, [None]

    def ask(self, do, **arguments):
        if do == "gradient":
            problem.write_arrays(arguments["path"], self.arrays)
        return {"losses": self.losses}


def test_losses_are_left_out_if_rounding_allows_no_step(tmp_path):
    workers: list = [Fixed("ours", [1.0, 2.0], 1.0), Fixed("torch", [1.0, 3.0], 1.5)]
    assert compare.agreement(workers, tmp_path, SAMPLES, 2)["torch"] == {"losses": 0.5, "gradient": 0.5}
    assert compare.agreement(workers, tmp_path, SAMPLES, 1)["torch"] == {"losses": 0.0, "gradient": 0.5}
    assert compare.agreement(workers, tmp_path, SAMPLES, 1, ["kernel"])["torch"] == {"losses": 0.0}
    assert "gradient of kernel too" in compare.agreement_table({}, "float32", 20, ["kernel"]).notes[0]
    assert "gradient of a, b, c and 2 more arrays too" in compare.agreement_table({}, "float32", 20, list("abcde")).notes[0]
    found = compare.agreement(workers, tmp_path, SAMPLES, 0)
    assert found["torch"] == {"gradient": 0.5}
    assert compare.agreement_table(found, "float32", 0).rows == (("PyTorch, eager", "5e-01", ""),)
    assert compare.disagreeing(found, 1e-4, ["losses"]) == []
    assert len(compare.disagreeing(found, 1e-4)) == 1


class Timed:
    """Worker whose samples take a second each, times the factor of each setting."""

    FACTORS = {"malloc": 0.5, "flush": 0.99, "pinned": 0.8, "avx2": 2.0}  # noqa: RUF012
    alive = 0

    def __init__(self, name, folder, settings):
        self.settings = settings
        Timed.alive += 1

    def ask(self, do, samples, epoch):
        return {"seconds": samples * math.prod(self.FACTORS[setting] for setting in self.settings)}

    def close(self):
        Timed.alive -= 1


def test_a_trial_keeps_the_settings_that_make_a_step_faster(monkeypatch, tmp_path):
    monkeypatch.setattr(torch_trial, "Worker", Timed)
    found = torch_trial.trials("torch", tmp_path, ["avx2", "malloc", "flush", "pinned"], batch=8, steps=2, turns=3)
    assert torch_trial.chosen(found) == ("malloc", "pinned")
    assert [trial.beside for trial in found] == [(), (), ("malloc",), ("malloc",), ()]
    assert found[-1].with_them == pytest.approx([8 * 0.4] * 3)
    assert found[-1].without == [8.0] * 3
    assert Timed.alive == 0
    rows = torch_trial.table("torch", found).rows
    assert [row[-1] for row in rows] == ["no", "yes", "no", "yes", "yes"]
    assert rows[-1][:2] == ("malloc, pinned", "all that were kept")


def test_settings_that_are_not_faster_together_are_dropped():
    def trial(added, ratio):
        return torch_trial.Trial(added, (), [ratio] * 3, [1.0] * 3)

    alone = [trial(("malloc",), 0.9), trial(("pinned",), 0.9)]
    assert torch_trial.chosen([*alone, trial(("malloc", "pinned"), 1.1)]) == ()
    assert torch_trial.chosen([*alone, trial(("malloc", "pinned"), 0.8)]) == ("malloc", "pinned")
    assert torch_trial.chosen([trial(("malloc",), 0.9), trial(("pinned",), 1.1)]) == ("malloc",)


def test_settings_reach_the_process(monkeypatch, tmp_path):
    class Started(Exception):
        pass

    def popen(command, env, **_):
        raise Started(command, env)

    monkeypatch.setattr(workers.subprocess, "Popen", popen)
    with pytest.raises(Started) as found:
        workers.Worker("torch", tmp_path, settings=["pinned", "flush"])
    command, environ = found.value.args
    assert command[-3:] == ["--settings", "pinned", "flush"]
    assert environ["OMP_PROC_BIND"] == "close"


@pytest.mark.parametrize("setting", ["channels-last", "flush", "one-thread", "no-onednn"])
def test_a_setting_changes_no_number(setting, known, own):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    try:
        peer = backends.load("torch", known, Place(), [setting])
        assert array_distance(peer.gradient(), own[2]) < 1e-4
        assert distance(peer.losses(SAMPLES, 1), own[0]) < 1e-4
        assert peer.facts()["threads"] == (1 if setting == "one-thread" else Place().cores)
        denormal = torch.full((1 << 20,), 1e-39) * 1.5  # large enough for all threads
        assert bool((denormal == 0).all()) == (setting == "flush")
    finally:
        torch.set_flush_denormal(False)
        torch.backends.mkldnn.enabled = True
        torch.set_num_threads(threads)


def test_the_processor_is_named_with_its_capabilities():
    found = hardware.processor()
    assert found["cpus"] >= 1
    assert {*found["capabilities"]} <= {*hardware.CAPABILITIES}
    assert f"cpus {found['cpus']}" in hardware.line(found)


def test_the_work_of_others_is_the_busy_time_less_our_own(monkeypatch):
    clock, busy, own = iter([10.0, 12.0]), iter([100.0, 103.0]), iter([7.0, 8.0])
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(hardware, "busy_s", lambda: next(busy))
    with hardware.watched(lambda: next(own)) as others:
        assert others.cores == 0.0
    assert others.cores == 1.0


def test_the_table_says_how_many_steps_were_compared():
    distances = {"ours": {"losses": 0.0, "gradient": 0.0}, "torch": {"losses": 2e-6, "gradient": 1e-5}}
    table = compare.agreement_table(distances, "float32", 9)
    assert table.columns[-1] == "losses, 9 steps"
    assert [row[1:] for row in table.rows] == [("1e-05", "2e-06")]
    assert len(table.notes) == 1
    assert compare.agreement_table(distances, "float32", compare.CHECKED).notes == ()


def test_batches_are_the_epoch_s_order_in_runs(known):
    batches = known.batches(SAMPLES, 2)
    assert [len(batch) for batch in batches] == [8, 8, 6]
    assert sorted(np.concatenate(batches)) == list(range(SAMPLES))


def test_monomials_are_those_of_our_density(known):
    shape = problem.Autoencoder(**known.model)
    expected = mixture.monomials_at(mixture.grid(shape.size, 3))
    np.testing.assert_allclose(shape.monomials("float32"), expected, atol=1e-7)


@pytest.mark.parametrize("rho", ["sigmoid", "tanh"])
def test_coefficients_are_those_of_our_density(rho):
    draw = np.random.default_rng(0).standard_normal
    with jax.enable_x64(True):
        planes = jnp.asarray(draw((5, 10, 4)))
        expected = mixture.coefficients_of(mixture.from_logits(planes, mixture.Ranges("partial", rho, (0.1,) * 3, 0.9)))
        log_weights = jax.nn.log_softmax(planes[:, 0])
        squash = {"sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}[rho]
        numbers = jnp.tanh(planes[:, 1:4]), 0.1 + 0.9 * jax.nn.sigmoid(planes[:, 4:7]), 0.9 * squash(planes[:, 7:])
    means, sigma, partial = (list(np.moveaxis(np.asarray(x), 1, 0)) for x in numbers)
    found = coefficients(np.asarray(log_weights), means, sigma, partial, sqrt=np.sqrt, log=np.log)
    np.testing.assert_allclose(np.stack(found, axis=-1), expected, rtol=1e-9, atol=1e-9)  # float64


def test_torch_s_layout_has_features_first_and_comes_back(known):
    theirs = torch_layout.from_ours(known.params)
    shapes = {name: value.shape for name, value in theirs.items()}
    assert shapes["convolutions.1.weight"] == (3, 3, 3, 3, 3)
    assert shapes["dense.weight"] == (8, 3 * 4**3)  # 8³ → 6³ → 4³, three filters
    assert shapes["heads.weight"] == (40, 8)
    assert shapes["heads.bias"] == (40,)
    back = torch_layout.to_ours(theirs)
    assert back.keys() == known.params.keys()
    assert all(np.array_equal(back[name], known.params[name]) for name in back)


@pytest.mark.slow
def test_ours_in_a_process_of_its_own_answers_as_here(folder, known, own):
    with start_workers(["ours"], folder) as [worker]:
        said = worker.ask("losses", samples=SAMPLES, epoch=1)
        np.testing.assert_allclose(said["losses"], own[0], rtol=1e-6)  # as many threads as devices here: another order of sums
        assert said["seconds"] > 0
        assert worker.ask("evaluate")["loss"] == pytest.approx(own[1], rel=1e-5)
        assert worker.ask("facts")["versions"]["jax"] == jax.__version__
        assert set(idle_shares([worker])) == {"ours"}
        assert compare.agreement([worker], folder, SAMPLES, steps=5)["ours"] == {"losses": 0.0, "gradient": 0.0}
        times = compare.timings([worker], batch=8, steps=2, samples=SAMPLES, turns=3, epochs=2)
    assert [len(times[what]["ours"]) for what in ("step", "epoch")] == [3, 2]
    assert all(process.returncode == 0 for process in worker.processes)


def test_a_process_that_fails_shows_what_it_said(tmp_path):
    with pytest.raises(SystemExit, match=r"(?s)gmmae ended with 1:.*problem\.json"), start_workers(["ours"], tmp_path):
        pass


def test_an_unknown_command_is_refused(known):
    with pytest.raises(ValueError, match=r"a command must be one .* got 'sing'"):
        answer(gmmae_backend.start(known, Place()), known, "sing")


@pytest.mark.parametrize(("name", "package"), [("torch", "torch"), ("keras", "tensorflow")])
def test_a_reference_agrees_with_ours(name, package, known, own):
    pytest.importorskip(package)
    peer = backends.load(name, known, Place())
    assert array_distance(peer.gradient(), own[2]) < 1e-4
    assert distance(peer.losses(SAMPLES, 1), own[0]) < 1e-4
    assert peer.evaluate() == pytest.approx(own[1], rel=1e-4)
    peer.reset()
    peer.train(SAMPLES, 1)
    assert peer.evaluate() == pytest.approx(own[1], rel=1e-4)


UNET = """workload = "segmentation"
[data]
samples = 8
validation = 2
shape = 8
[model]
features = [2, 3]
[optim]
batch_size = 8
[stop]
monitor = "dice"
mode = "max"
"""


def test_the_reference_of_the_u_net_agrees_with_ours(tmp_path):
    pytest.importorskip("torch")
    from benchmarks.peers import torch_unet

    (tmp_path / "unet.toml").write_text(UNET, encoding="utf-8")
    problem.write(
        tmp_path, gmmae_backend.problem_of(name=str(tmp_path / "unet.toml"), samples=6, validation=2, precision="float64")
    )
    known = problem.read(tmp_path)
    assert known.train["truth"].any(axis=(1, 2)).all()
    theirs = torch_unet.from_ours(known.params)
    assert theirs["ups.0.weight"].shape == (3, 2, 2, 2)
    back = torch_unet.to_ours(theirs)
    assert back.keys() == known.params.keys()
    assert all(np.array_equal(back[name], known.params[name]) for name in back)
    peer, reference = gmmae_backend.start(known, Place()), backends.load("torch", known, Place())
    assert array_distance(reference.gradient(), peer.gradient()) < 1e-9  # float64
    assert distance(reference.losses(known.samples, 1), peer.losses(known.samples, 1)) < 1e-9
    assert reference.evaluate() == pytest.approx(peer.evaluate(), rel=1e-6)  # after steps of Adam, which magnify


@pytest.mark.slow
def test_the_u_net_is_compared_over_as_many_steps_as_rounding_allows(tmp_path):
    """The comparison of `unet_quick` was refused with its schedule, and with 20 steps for any rounding."""
    words = ("--config", "unet_quick", "--parts", "peers", "--peers", "torch", "--turns", "1", "--epochs", "0")
    words += ("--settings", "flush", "malloc")
    command = [sys.executable, "-m", "benchmarks", *words, "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text(encoding="utf-8"))["peers"]
    agreed = found["agreed"]
    assert "float64" in agreed or agreed["float32"]["steps"] == compare.CHECKED
    for of in agreed.values():
        assert f"losses, {of['steps']} steps" in done.stdout
        assert of["agreement"]["ours"] == {"losses": 0.0, "gradient": 0.0}
    assert "epoch" not in found
    if importlib.util.find_spec("torch") is None:  # the comparison left PyTorch out, with a line
        assert found["settings"] == {}
        assert "PyTorch, eager" in done.stdout + done.stderr
    else:
        assert found["settings"] == {"torch": ["flush", "malloc"]}
        assert "PyTorch, eager ran with flush, malloc, on" in done.stdout
    assert found["about"]["hardware"]["cpus"] >= 1
    assert found["about"]["command"].startswith("python -m benchmarks --config unet_quick")


class Falling:
    """A peer whose validation loss halves with each epoch."""

    def __init__(self, loss):
        self.loss, self.trained = loss, []

    def train(self, samples, epoch):
        self.trained.append((samples, epoch))
        self.loss /= 2

    def evaluate(self):
        return self.loss


@pytest.mark.parametrize(
    ("start", "target", "reached", "epochs"), [(1.0, 0.125, True, 3), (1.0, 0.01, False, 4), (math.nan, 0.125, False, 1)]
)
def test_a_reference_stops_at_the_first_epoch_at_the_target_or_says_that_it_missed(known, start, target, reached, epochs):
    peer = Falling(start)
    result = to_target(peer, known._replace(target_loss=target, max_epochs=4))  # pyright: ignore[reportArgumentType]
    assert (result["reached"], len(result["epoch_s"])) == (reached, epochs)
    assert peer.trained == [(SAMPLES, epoch) for epoch in range(1, epochs + 1)]


def test_disagreement_is_named_and_nan_is_one():
    distances = {"ours": {"losses": 0.0}, "torch": {"losses": 2e-4, "gradient": 1e-5}, "keras": {"losses": math.nan}}
    torch, keras = compare.disagreeing(distances, 1e-4)
    assert torch.startswith("PyTorch, eager: losses differ from ours by 2.0e-04")
    assert keras.startswith("Keras on TensorFlow: losses differ from ours by nan")
    tolerances = [compare.tolerance("segmentation", "float32"), compare.tolerance("segmentation", "float64")]
    assert [*tolerances, compare.tolerance("nodules", "float32")] == [1e-2, 1e-4, 1e-4]


def test_times_are_shown_beside_ours():
    times = {"idle": {"ours": 0.0, "torch": 0.5}, "step": {"ours": [0.1, 0.2, 0.1], "torch": [0.05, 0.1, 0.05]}}
    times["facts"] = {"ours": {"device": "NVIDIA H200"}, "torch": {"device": "cpu"}}
    [table] = compare.timing_tables(times)
    assert [row[1:3] for row in table.rows] == [("100 (100 to 150)", "1 (1 to 1)"), ("50 (50 to 75)", "0.5 (0.5 to 0.5)")]
    idle, other_device = table.notes
    assert "50 %" in idle
    assert "cpu, ours on NVIDIA H200" in other_device


def test_the_fastest_torch_runs_to_the_target():
    steps = {"ours": [0.01], "torch": [0.2], "torch-compile": [0.1], "keras": [0.05]}
    assert compare.fastest_reference({"step": steps}) == "torch-compile"
    assert compare.fastest_reference({}) == "torch"


def test_what_is_missing_is_left_out_with_a_line(monkeypatch):
    names, [line] = backends.available(("ours", "keras"), "cpu", "segmentation")
    assert names == ["ours"]
    assert "no segmentation" in line
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    names, [torch, graphs] = backends.available(("ours", "torch", "torch-graphs"), "cpu", "nodules")
    assert names == ["ours"]
    assert "torch is not installed" in torch
    assert "it is for gpu" in graphs
