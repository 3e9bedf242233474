"""The exact reduction: the same bits on any number of devices. Two processes are in test_distributed.py.

All devices here are of one process whose eight threads stand in conftest.py, as many as the shards.
"""

import dataclasses

import jax
import numpy as np
import pytest

from gmmae.system.environment import THREADS
from gmmae.system.errors import InputError
from gmmae.training import preparation, programs
from gmmae.training.records import to_json
from gmmae.workloads import registry
from tests.small import CHEAP, EXACT, RATES, fingerprint, finish, small

pytestmark = pytest.mark.usefixtures("optimised")


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setenv(THREADS, "8")  # what an error test of another module may have left


def bits(folder, counts, epochs: int, **changes):
    """Trains on each number of devices, and returns what parameters, optimiser and losses are."""
    found = set()
    for devices in counts:
        config = small(parallel__devices=devices, stop__max_epochs=epochs, **EXACT | changes)
        rows = finish(config, folder / str(devices))[1].rows
        assert len({row.val_loss for row in rows}) == epochs, "losses that do not change would say nothing"
        found.add(fingerprint(config, folder / str(devices)))
    return found


# 22 samples. In batches of 8 a shard is one sample, and the last batch leaves two of eight empty. In batches of 20 it has three
# slots: every step leaves one shard empty and a third of another; the last batch, of 2, fills two thirds of one.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "changes"),
    [((1, 2, 4, 8), {}), ((1, 4), {"optim__batch_size": 20, "data__augment": True, "optim__clip_norm": 1.0})],
    ids=["one sample a shard", "padding, augmentation, clipping"],
)
def test_twenty_epochs_have_the_same_bits_on_any_number_of_devices(tmp_path, counts, changes):
    assert len(bits(tmp_path, counts, 20, **changes)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "lamb", "lars"])  # the others are parts of these
def test_every_optimiser_has_the_same_bits_on_any_number_of_devices(tmp_path, name):
    optim = {"optim__name": name, "optim__learning_rate": RATES[name], "optim__weight_decay": 0.01}
    assert len(bits(tmp_path, (1, 8), 5, **optim, **CHEAP)) == 1


DIVIDING = """
from dataclasses import dataclass
import jax, numpy as np
from gmmae.workloads.interface import Splits, Workload

@dataclass(frozen=True)
class Config:
    samples: int = 28

def build(config):
    x = np.random.default_rng(0).normal(size=(config.samples, 16)).astype(np.float32)

    def losses(params, x, keys):
        z = x @ params[0]
        return ((z / (2 + z[:, :1] ** 2) * (x @ params[1]) - x) ** 2).mean(1) + jax.nn.softmax(z).max(1)

    return Workload(lambda: Splits(x[6:], x[:6]), lambda key: jax.random.normal(key, (2, 16, 16)) * 0.3, losses)
"""
"""A workload that divides by a number of each row, as a softmax or a normalisation does."""


@pytest.mark.slow
@pytest.mark.xfail(jax.__version_info__ >= (0, 12), reason="fused multiply-add, see docs/devices.md", strict=True)
def test_divisions_by_rows_have_the_same_bits_on_any_number_of_devices(tmp_path):
    (tmp_path / "dividing.py").write_text(DIVIDING)
    dividing = registry.configuration(str(tmp_path / "dividing.py"))
    assert len(bits(tmp_path, (1, 2, 8), 10, workload=dividing.workload, settings=dividing.settings)) == 1


@pytest.mark.slow
def test_a_batch_that_grows_has_the_same_bits_on_any_number_of_devices(tmp_path):
    """The eight devices of the strategy are simulated by fewer ones, and by themselves. All 22 samples are 3 slots a shard."""
    growing = {"scaling": "growing", "optim__batch_doubling_epochs": (2, 4)}
    changes = growing | {"parallel__simulate_devices": 8, "stop__max_epochs": 7} | EXACT | CHEAP
    found = set()
    for devices in (1, 8):
        config = small(parallel__devices=devices, **changes)
        rows = finish(config, tmp_path / str(devices))[1].rows
        assert [row.batch for row in rows] == [8, 8, 16, 16, 22, 22, 22]
        found.add(fingerprint(config, tmp_path / str(devices)))
    real = small(parallel__devices=8, **changes | {"parallel__simulate_devices": None})
    finish(real, tmp_path / "real")
    assert found == {fingerprint(real, tmp_path / "real")}


@pytest.mark.slow
def test_a_run_that_changes_its_devices_has_the_bits_of_one_that_does_not(tmp_path):
    for devices, epochs in ((8, 5), (2, 8), (1, 12)):
        config = small(parallel__devices=devices, stop__max_epochs=epochs, **EXACT, **CHEAP)
        assert not finish(config, tmp_path / "elastic")[1].lines
    finish(config, tmp_path / "one")
    assert fingerprint(config, tmp_path / "elastic") == fingerprint(config, tmp_path / "one")


def after_an_epoch(**changes):
    """The parameters' and the optimiser's arrays."""
    setup = preparation.prepare(small(**changes))
    with preparation.precision_context(setup.config):
        state = setup.devices.replicate(preparation.initial_state(setup))
        return jax.tree.leaves(jax.device_get(programs.training(setup, state)(state, 1)[0]))


@pytest.mark.slow
def test_the_exact_mean_is_the_mean():
    """Compares in float64, where rounding leaves ten digits and more of a parameter."""
    double = CHEAP | {"precision": "float64"}
    for exact, fast in zip(after_an_epoch(**double, **EXACT), after_an_epoch(**double), strict=True):
        np.testing.assert_allclose(exact, fast, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_other_shards_have_other_bits(tmp_path, monkeypatch):
    """What the tests above would find, if sums were added in another order."""
    eight = bits(tmp_path / "8", (1,), 1, optim__batch_size=16)
    monkeypatch.setenv(THREADS, "16")
    assert bits(tmp_path / "16", (1,), 1, optim__batch_size=16, parallel__deterministic_shards=16) != eight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"parallel__devices": 3},
            r"parallel.devices must divide parallel.deterministic_shards = 8 .*; got 3: use a power of two",
        ),
        (
            {"parallel__devices": 8, "parallel__deterministic_shards": 4},
            r"must divide parallel.deterministic_shards = 4 .*; got 8",
        ),
        (
            {"parallel__micro_batch_size": 2},
            r"parallel.micro_batch_size must be none .*; got 2: a larger parallel.deterministic_shards bounds memory",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        preparation.prepare(small(**EXACT | changes))


def test_too_few_threads_are_refused(monkeypatch):
    monkeypatch.setenv(THREADS, "2")
    with pytest.raises(InputError, match=r"needs PJRT_NPROC = parallel.deterministic_shards = 8 "):
        preparation.prepare(small(**EXACT))


@pytest.mark.slow
def test_going_on_with_other_versions_or_another_device_is_warned_of(tmp_path):
    config = small(stop__max_epochs=1, **EXACT, **CHEAP)
    record, display = finish(config, tmp_path)
    assert display.facts["reduction"] == "exact: 8 shards of 1; the same bits on any number of devices"
    other = dataclasses.replace(record, device_kind="abacus", versions=record.versions | {"jax": "0.1"})
    (tmp_path / "record.json").write_text(to_json(other))
    [line] = finish(small(stop__max_epochs=2, **EXACT, **CHEAP), tmp_path)[1].lines
    assert line == (
        "warning: bits may differ from those of one run throughout: the device was abacus and is cpu, jax was 0.1 and is "
        f"{jax.__version__}"
    )
