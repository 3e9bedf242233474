"""Local steps: replicas that train by themselves and are averaged. Their bits in parts are in test_same_bits.py."""

import numpy as np
import pytest

from gmmae.scaling.batches import epoch_order
from gmmae.system.errors import InputError
from gmmae.training import preparation
from tests.commands import run_gmmae
from tests.small import CHEAP, EXACT, finish, losses, small

# 22 training samples: an epoch has two steps of 8 and one of 6, which four devices share unequally.
VIRTUAL = {"parallel__simulate_devices": 4}
LOCAL = {"scaling": "local", "optim__local_steps": 2}

ROOT_FINDER = """
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from gmmae.workloads.interface import Splits, Workload

squares = np.random.default_rng(3).uniform(1, 9, 13).astype(np.float32)

@dataclass(frozen=True)
class Config:
    pass

def build(config):
    return Workload(
        load=lambda: Splits(squares, squares),
        init=lambda key: {"root": jnp.full((), 2.0)},
        losses=lambda params, squares, keys: (params["root"] ** 2 - squares) ** 2,
    )
"""


def of_run(tmp_path, name="run", **changes):
    return np.array([row[1:] for row in losses(finish(small(**CHEAP | changes), tmp_path / name)[1].rows)])


@pytest.mark.parametrize("scaling", ["local", "local-weak"])
def test_replicas_on_fewer_devices_are_those_of_real_ones(tmp_path, scaling):
    real, strong = (of_run(tmp_path, name, **LOCAL | {"parallel__devices": 4, "scaling": name}) for name in (scaling, "strong"))
    for devices in (1, 2):
        virtual = of_run(tmp_path, f"on-{devices}", **LOCAL | VIRTUAL | {"scaling": scaling, "parallel__devices": devices})
        np.testing.assert_allclose(virtual, real, rtol=1e-5)
    assert not np.allclose(real, strong, rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_rounds_of_two_devices_worked_by_hand(tmp_path, momentum):
    """13 samples in steps of 4: rounds of three steps, and of the epoch's last, whose only sample the first device has."""
    (tmp_path / "root.py").write_text(ROOT_FINDER)
    options = ("--optim.name", "sgd", "--optim.learning-rate", 0.001, "--optim.batch-size", 4, "--stop.max-epochs", 5)
    options += ("--scaling", "local", "--optim.local-steps", 3, "--optim.outer-momentum", momentum)
    options += ("--parallel.simulate-devices", 2, "--parallel.devices", 1)
    assert run_gmmae("train", "--workload", tmp_path / "root.py", *options, "--workdir", tmp_path / "run") == 0
    squares, root, speed, expected = np.random.default_rng(3).uniform(1, 9, 13).astype(np.float32), 2.0, 0.0, []
    for epoch in range(1, 6):
        order = squares[epoch_order(0, epoch, 13)].astype(float)
        for steps in ([0, 4, 8], [12]):
            replicas = [root, root]
            for first in steps:
                for device in range(2):
                    share = order[first : first + 4][2 * device : 2 * device + 2]
                    gradient = 4 * replicas[device] * (replicas[device] ** 2 - share)
                    replicas[device] -= 0.001 * 2 * gradient.sum() / len(order[first : first + 4])
            change = np.mean(replicas) - root
            speed = momentum * speed + change
            root += change + momentum * speed
        expected.append(((root**2 - squares) ** 2).mean())
    history = np.genfromtxt(tmp_path / "run" / "history.csv", delimiter=",", names=True)
    np.testing.assert_allclose(history["val_loss"], expected, rtol=1e-5)


def test_the_record_and_the_start_table_say_what_is_averaged(whole):
    _, _, record, display = whole(**CHEAP | LOCAL | VIRTUAL)
    assert (record.local_steps, record.reduced_numbers) == (2, 3 * record.parameters)  # and both of Adam's moments
    assert "after 2 local steps and at the end of an epoch" in display.facts["reduction"]


def test_devices_that_nobody_chose_divide_those_that_are_simulated():
    assert preparation.prepare(small(**LOCAL, parallel__devices="all", parallel__simulate_devices=3)).devices.count == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (EXACT, "with parallel.deterministic; got local"),
        ({"parallel__devices": 3}, "parallel.devices must divide parallel.simulate_devices = 4 .*; got 3"),
        ({"stop__validate_every_steps": 3}, "must be a multiple of optim.local_steps = 2 .*; got 3"),
        ({"parallel__simulate_devices": 16}, "parallel.devices must be at most the samples in a step, 8"),
    ],
)
def test_what_has_no_rounds_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        preparation.prepare(small(**LOCAL | VIRTUAL | changes))
