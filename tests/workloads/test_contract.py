"""The contract of a workload: a file that breaks it is refused in one line before anything is trained."""

from functools import partial

import jax
import pytest

from gmmae.config.schema import changed
from gmmae.training import preparation
from gmmae.training.records import read_history
from gmmae.workloads import contract, registry
from tests.commands import last_refusal, refusal, rows, run_gmmae
from tests.small import SMALL, SMALL_LATTICE, SMALL_SEGMENTATION

LINEAR = '''
"""A linear regression. Tests change one of its names at the end of the file."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from gmmae.workloads.interface import Splits, Workload

rng = np.random.default_rng(0)
x = rng.normal(2, 3, (12, 4)).astype(np.float32)
y = (x @ np.array([1, -2, 0.5, 3]) + 5).astype(np.float32)


@dataclass(frozen=True)
class Config:
    rate: float = 0.1  # of dropout


def splits():
    return Splits({"x": x, "y": y}, {"x": -x[:5], "y": y[:5]})


def params(key):
    return {"w": jnp.zeros(4), "b": jnp.zeros(())}


def predict(p, x, keys):
    return x @ p["w"] + p["b"]


def losses(p, s, keys):
    return (predict(p, s["x"], keys) - s["y"]) ** 2


def metrics(p, s):
    return {}


def build(config):
    return Workload(lambda: splits(), lambda key: params(key), lambda p, s, k: losses(p, s, k), lambda p, s: metrics(p, s))


class Rows:
    """The training samples one by one."""

    def __init__(self, row, length=12):
        self.row, self.length = row, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.row(index)
'''

FAST = ("--parallel.devices", 1, "--optim.batch-size", 4, "--stop.max-epochs", 2, "--log.no-tensorboard")


@pytest.fixture
def train(tmp_path):
    """Writes the regression with changes, and returns the words of its command."""

    def write(changes, *words, run="run"):
        path = tmp_path / "mine.py"
        path.write_text(LINEAR + changes)
        return "train", "--workload", path, "--workdir", tmp_path / run, *FAST, *words

    return write


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """A folder of compiled programs for this test alone."""
    before = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    folder = tmp_path / "compiled"
    folder.mkdir()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
    yield folder
    jax.config.update("jax_compilation_cache_dir", before)


STANDARDISED = "def predict(p, x, keys): return (x - x.mean(0)) / x.std(0) @ p['w'] + p['b']"
FIXED_KEY = "def predict(p, x, keys): return x @ p['w'] + p['b'] + jax.random.normal(jax.random.key(0), (len(x),))"
LOADED = """
def build(config):
    own = {}

    def load():
        own["mean"] = x.mean()
        return splits()

    return Workload(load, params, lambda p, s, keys: losses(p, s, keys) * (own["mean"] if own else NONE))

"""
PARAMS = "def params(key): return {{'w': jnp.zeros(4), 'b': jnp.zeros(()), {}}}"
TRAIN = "def splits(): return Splits({}, {{'x': -x[:5], 'y': y[:5]}})"
BROKEN = {
    "the mean of the batch": (STANDARDISED, "follow other samples"),
    "noise of a fixed key": (FIXED_KEY, "follow other samples"),
    "a share of the batch": (
        "def losses(p, s, keys): return (s['x'] @ p['w'] - s['y']) ** 2 / len(s['y'])",
        "follow other samples",
    ),
    "training alone": (STANDARDISED.replace("return", "return x @ p['w'] if keys is None else"), "follow other samples"),
    "a constant of load": (LOADED + "NONE = 1", "without load"),
    "a constant of load alone": (LOADED, "NameError"),
    "a metric": ("def metrics(p, s): return {'rank': s['y'].argsort().argsort()}", "rank"),
    "integer losses": ("def losses(p, s, keys): return (s['x'] @ p['w'] > 0).astype(int)", "int32"),
    "complex losses": ("def losses(p, s, keys): return s['x'] @ p['w'] + 1j", "complex64"),
    "a complex metric": ("def metrics(p, s): return {'phase': s['y'] * 1j}", "complex64"),
    "metrics of one name for TensorBoard": ("def metrics(p, s): return {'y<1': s['y'], 'y>1': s['y']}", "'y<1', 'y>1'"),
    "no metrics": ("def metrics(p, s): return None", "NoneType"),
    "a metric in two lines": ("def metrics(p, s): return {'recall\\nof 1': s['y']}", "one line"),
    "complex parameters": (PARAMS.format("'c': jnp.zeros(3, complex)"), "complex64 3 for c"),
    "integer parameters": (PARAMS.format("'n': jnp.zeros(3, int)"), "int32 3 for n"),
    "a random key": (PARAMS.format("'key': key"), "key"),
    "a parameter without elements": (PARAMS.format("'none': jnp.zeros((0, 3))"), "float32 0×3 for none"),
    "no parameters": ("def params(key): return {}", "no parameters"),
    "names alike": (PARAMS.format("'a.b': jnp.ones(2), 'a': {'b': jnp.ones(2)}"), "a.b"),
    "large integers": (TRAIN.format("{'x': x, 'y': 2**40 + np.arange(12)}"), "1099511627776"),
    "large integers of a source": (TRAIN.format("Rows(lambda i: {'x': x[i], 'y': 2**40 + i})"), "1099511627776"),
    "text": (TRAIN.format("{'x': x, 'y': np.array(['a'] * 12)}"), "<U1"),
    "a masked array": (TRAIN.format("{'x': x, 'y': np.ma.masked_less(y, 0)}"), "masked array"),
    "objects": (TRAIN.format("{'x': x, 'y': np.array([None] * 12)}"), "object"),
    "keys of two types": (TRAIN.format("{'x': x, 1: y}"), "dictionary keys"),
    "typed keys": (TRAIN.format("{'x': x, 'y': jax.random.split(jax.random.key(0), 12)}"), "PRNGKey"),
    "other keys": (TRAIN.format("{'x': x, 'z': y}"), "'z'"),
    "other shapes": (TRAIN.format("{'x': x[:, :3], 'y': y}"), "float32 3"),
    "other keys of a source": (TRAIN.format("Rows(lambda i: x[i])"), "TypeError"),
    "a length that is no number": (TRAIN.format("Rows(lambda i: {'x': x[i], 'y': y[i]}, 2.5)"), "length"),
    "other counts": (TRAIN.format("{'x': x, 'y': y[:3]}"), "(12, 4), (3,)"),
    "no samples": (TRAIN.format("{'x': x[:0], 'y': y[:0]}"), "(0, 4), (0,)"),
    "a number": (TRAIN.format("np.float32(1)"), "shapes ()"),
    "nothing": (TRAIN.format("{}"), "nothing"),
    "too few groups": (
        "def splits(): return Splits(x, x, groups={'train': [*x], 'validation': [*x[:3]]})",
        "3 for 12 validation",
    ),
    "no splits": ("def splits(): return None", "NoneType"),
    "a missing file": (
        "def splits(): return np.load('absent.npz')",
        "load of a workload must find the files that it reads; got absent",
    ),
    "a missing file of build": ("def build(config): return np.load('absent.npz')", "got absent.npz"),
    "no workload": ("def build(config): return 3", "int"),
    "no build": ("del build", "no build"),
    "no settings": ("del Config", "no Config"),
    "settings of another kind": ("Config = dict", "<class 'dict'>"),
    "a key of every run": ("@dataclass\nclass Config: seed: int = 4", "seed"),
    "an option of a command": ("@dataclass\nclass Config: split: int = 4", "split"),
    "no default": ("@dataclass\nclass Config: depth: int", "depth"),
    "an infinite default": ("@dataclass\nclass Config: limit: float = float('inf')", "limit must be a number; got inf"),
    "a default of another type": ("@dataclass\nclass Config: sizes: list[int] = None", "sizes must be a list"),
    "a default that TOML lacks": ("@dataclass\nclass Config: phase: complex = 1j", "phase must be text, a number"),
    "a list that TOML lacks": (
        "@dataclass\nclass Config: ends: tuple[int | None, ...] = (None, 3)",
        "ends must be text, a number",
    ),
    "one loss": ("def losses(p, s, keys): return s['x'].sum()", "float32 of shape ()"),
    "a metric of another shape": ("def metrics(p, s): return {'x': s['x']}", "'x' of a workload"),
    "a metric called loss": ("def metrics(p, s): return {'loss': s['y']}", "'loss'"),
    "a metric called split": ("def metrics(p, s): return {'split': s['y']}", "'split'"),
    "an undefined metric that is none": (
        "def splits(): return Splits({'x': x, 'y': y}, {'x': -x, 'y': y}, may_be_undefined=('sensitivity',))",
        "got 'sensitivity'",
    ),
    "a column of another length": (
        "def splits(): return Splits(x, -x, columns={'train': {'age': range(11)}})",
        "columns, 'age', of a workload must be as many as its samples; got 11 for 12 train",
    ),
    "origins of another length": ("def splits(): return Splits(x, -x, origins={'train': [*'abc']})", "got 3 for 12 train"),
    "a test set without groups": (
        "def splits(): return Splits(x, -x, test=x, groups={'train': range(12), 'validation': range(12, 24)})",
        "got 0 for 12 test samples",
    ),
    "a sample without a group": (
        "def splits(): return Splits(x, -x, groups={'train': [*range(11), None], 'validation': [*range(12, 24)]})",
        "blank one among the train samples",
    ),
    "names of no split": ("def splits(): return Splits(x, x, names=[*range(12)])", "names of a workload must be by split"),
    "names of one split": ("def splits(): return Splits(x, x[:5], names={'train': list('abcdefghijkl')})", "names"),
}


@pytest.mark.parametrize(("changes", "word"), BROKEN.values(), ids=BROKEN)
def test_a_broken_contract_is_refused_before_the_training(train, capsys, changes, word, tmp_path):
    assert word in last_refusal(capsys, *train(changes))
    assert not (tmp_path / "run" / "history.csv").exists()


def test_an_option_of_a_plain_dataclass_keeps_its_annotation(train, capsys):
    assert "rate must be a number; got inf" in refusal(capsys, *train("", "--rate", "inf"))


@pytest.mark.parametrize("config", [SMALL, changed(SMALL, **SMALL_LATTICE), SMALL_SEGMENTATION])
def test_our_own_workloads_keep_it(config):
    """They are not checked at each start."""
    setup = preparation.prepare(config)
    program, data = jax.jit(partial(contract.values, setup.workload)), (setup.data.train, setup.data.validation)
    params = preparation.initial_state(setup).params
    contract.require_independence([program, program], params, data, lambda samples: samples, config.workload, None)


@pytest.mark.parametrize("precision", ["float32", "float64", "tf32"])
def test_the_regression_itself_passes(train, precision):
    assert run_gmmae(*train("", "--precision", precision)) == 0


BOTH_SIDES = """
def splits():
    if SOURCES:
        return Splits(Rows(lambda i: {'x': x[i], 'y': y[i]}), Rows(lambda i: {'x': -x[i], 'y': y[i]}, 6))
    groups = {'train': range(12), 'validation': range(3), 'test': range(20, 22)}
    test = {'x': x[:2] * np.float32([[1], [2]]), 'y': y[:2]}
    return Splits({'x': x, 'y': y}, {'x': x[9:], 'y': y[9:]}, groups=groups, test=test)
"""


def test_what_stands_on_both_sides_of_a_users_own_division_is_said(train, capsys, tmp_path):
    assert run_gmmae(*train(BOTH_SIDES + "SOURCES = False")) == 0
    assert capsys.readouterr().err.splitlines()[:3] == [
        "warning: 3 of 3 validation samples are training samples too",
        "warning: groups of samples are in training and in validation: 3, such as 0",
        "warning: 1 of 2 test samples are training samples too",
    ]
    assert run_gmmae("evaluate", tmp_path / "run", "--split", "test") == 0
    assert [row["split"] for row in rows(tmp_path / "run" / "evaluation_test.csv")] == ["train", "test"]
    assert run_gmmae(*train(BOTH_SIDES + "SOURCES = True", run="source")) == 0
    capsys.readouterr()
    assert run_gmmae(*train("", "--init-from", tmp_path / "source", run="tuned")) == 0
    assert "2 training samples of" in capsys.readouterr().err, "ten of twelve are hashed"


RECURRENT = """
def params(key):
    of_input, of_state = jax.random.split(key)
    return {"input": jax.random.normal(of_input, (64,)), "state": jax.random.normal(of_state, (64, 64)) / 8, "w": jnp.zeros(64)}

def predict(p, x, keys):
    step = lambda h, number: (jnp.tanh(number[:, None] * p["input"] + h @ p["state"]), None)
    return jax.lax.scan(step, jnp.zeros((len(x), 64), x.dtype), jnp.tile(x.T, (10, 1)))[0] @ p["w"]
"""
CONVOLUTION = """
from flax import linen as nn

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.GroupNorm(4)(nn.Conv(16, (3, 3))(x[..., None])))
        return nn.Dense(1)(x.reshape(len(x), -1))[:, 0]

images = rng.normal(size=(12, 8, 8)).astype(np.float32)

def splits(): return Splits({"x": images, "y": y}, {"x": -images[:5], "y": y[:5]})
def params(key): return Net().init(key, images[:1])
def predict(p, x, keys): return Net().apply(p, x)
def metrics(p, s): return {"right": (predict(p, s["x"], None) > 0) == (s["y"] > 0)}
"""
DROPOUT = """
def predict(p, x, keys):
    if keys is not None:
        x = x * jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (4,)))(keys)
    return x @ p["w"] + p["b"]
"""
HALF = """
def params(key): return {"u": jax.random.normal(key, (4, 512)), "w": jax.random.normal(key, (512,))}
def predict(p, x, keys):
    half = jnp.bfloat16
    return (jnp.tanh(x.astype(half) @ p["u"].astype(half)) @ p["w"].astype(half)).astype(x.dtype)
"""
INNOCENT = {
    "recurrent": RECURRENT,
    "convolution with group norm": CONVOLUTION,
    "dropout": DROPOUT,
    "large losses": "y *= 1e9",
    "small losses": "x *= 1e-12; y *= 1e-12",
    "half precision": HALF,
    "undefined": "def metrics(p, s): return {'log': jnp.log(s['x'][:, 0])}",
    "a single sample": "x, y = x[:1], y[:1]",
    "equal samples": "x[:], y[:] = 1, 1",
    "large numbers of 32 bits": TRAIN.format("{'x': x, 'y': 2**31 - 1 - np.arange(12)}"),
    "validation with larger samples": """
def splits(): return Splits({"x": x, "y": y}, {"x": np.tile(x, 2), "y": y})
def predict(p, x, keys): return x.mean(-1) * p["b"]
""",
    "a source": TRAIN.format("Rows(lambda i: {'x': x[i], 'y': y[i]})"),
}


@pytest.mark.parametrize("changes", INNOCENT.values(), ids=INNOCENT)
def test_a_file_that_keeps_the_contract_trains(train, changes):
    assert run_gmmae(*train(changes, "--optim.batch-size", 1)) == 0


def test_a_share_of_a_recurrent_model_stays_whole(train):
    _, _, path, *_ = train(RECURRENT + "x, y = np.tile(x, (20, 1)), np.tile(y, 20)")
    config = changed(registry.configuration(str(path)), optim__batch_size=240, parallel__devices=1)
    assert preparation.prepare(config).train_plan.micro_batches == 1


COUNTING = """
sizes = []

def predict(p, x, keys):
    sizes.append(len(x))
    return x @ p["w"] + p["b"]
"""


def checks(command):
    """Runs a command, and returns whether it computes a sample alone."""
    sizes = registry.load(str(command[2])).sizes
    sizes.clear()
    assert run_gmmae(*command) == 0
    return 1 in sizes


def test_the_check_is_remembered_for_a_file_and_its_settings(train, cache_folder):
    rates = {"first": 0.1, "again": 0.1, "other": 0.2}
    assert [checks(train(COUNTING, "--rate", rate, run=run)) for run, rate in rates.items()] == [True, False, True]
    assert len(list(cache_folder.glob("contract-*"))) == 2


def test_without_a_folder_each_start_checks(train, cache_folder):
    cache_folder.rmdir()
    cache_folder.write_text("a file")
    assert [checks(train(COUNTING, run=run)) for run in ("first", "again")] == [True, True]


NAMES = ["recall, class 1", 'so "called"', "Höhe <b>", "a/b"]


def test_any_name_of_a_metric_in_one_line_works(train, tmp_path):
    command = train(f"def metrics(p, s): return {{name: s['y'] for name in {NAMES}}}", "--stop.validate-every-steps", 2)
    assert run_gmmae(*command) == 0
    assert sorted(read_history(tmp_path / "run" / "history.csv")[-1].metrics) == sorted(NAMES)
