"""The programs of a run, compiled for H100s that are not there, hold what was promised of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.device_programs import compiled, in_mode, read, topology
from gmmae.config.schema import changed
from gmmae.config.toml import find
from gmmae.models import autoencoder
from gmmae.training import preparation, programs
from gmmae.training.step import pmean
from gmmae.workloads.configuration import read_config
from tests.gpu_programs.checks import BOUNDS, GROWN, NORMS, PLAIN, Asked, faults, validation_faults
from tests.small import small

pytestmark = pytest.mark.usefixtures("optimised")

STEPS = 5
PAPER = changed(read_config(find("paper")), data__samples=32 * STEPS + 128, data__validation=128)
PARAMETERS = 493_492


@pytest.mark.parametrize(("mode", "devices", "hosts"), BOUNDS)
def test_a_step_keeps_to_its_kernels_memory_meetings_and_precision(mode, devices, hosts, tmp_path):
    readings = dict(compiled(in_mode(PAPER, mode, devices), topology("h100", devices, hosts, tmp_path), tmp_path))
    asked = Asked(mode, devices, PARAMETERS, BOUNDS[mode, devices, hosts])
    assert faults(readings["epoch"], asked) == []
    assert validation_faults(readings["validation"], asked) == []
    # Of spectra; tap by tap, as a device with few samples computes them, these are 7e9.
    one_pass = 32 if mode == "exact" else devices
    assert sum(product.operations for product in readings["epoch"].products) > 2e9 / one_pass, "the reading has lost products"


@pytest.mark.parametrize("name", ["nesterov", *NORMS])
def test_an_optimiser_takes_the_launches_and_the_memory_of_adam_and_those_of_its_norms(name):
    """The program is for 8 GPUs, whose devices must not meet for a norm either. The test above is Adam's."""
    adam = BOUNDS["float32", 8, 1]
    [_, reading] = next(compiled(changed(PAPER, optim__name=name), topology("h100", 8, 1)))
    bound = adam._replace(launches=adam.launches + NORMS.get(name, 0))
    assert faults(reading, Asked("float32", 8, PARAMETERS, bound)) == []


def test_the_last_stage_of_a_growing_batch_meets_once_a_step_and_keeps_to_its_memory():
    """The first stage has the batch of 32 of the tests above."""
    devices, batch = topology("h100", 8, 1), 256
    growing = changed(PAPER, scaling="growing", optim__batch_doubling_epochs=(1, 2, 3), data__samples=batch * STEPS + 128)
    setup = preparation.setups_by_stage(preparation.prepare(growing, devices))[-1]
    assert (setup.train_plan.batch, setup.train_plan.steps) == (batch, STEPS)
    with preparation.precision_context(growing):
        program = programs.compile_training(setup, devices.replicate(preparation.blank_state(growing, setup.workload)))[0]
    assert faults(read(program, STEPS), Asked("float32", 8, PARAMETERS, GROWN)) == []


def test_the_memory_of_a_step_is_known_for_gpus_that_are_not_there():
    """Half of the batch on a device needs less than the whole, and more than half: the data are on each."""
    whole, half = (programs.needed_bytes(preparation.prepare(PAPER, topology("h100", n, 1))) for n in (1, 2))
    assert 0.5 < half / whole < 1


def epoch_of_small(target):
    """The text of the compiled epoch of the smallest run."""
    config, devices = small(data__augment=False), topology(target, 1, 1)
    setup = preparation.prepare(config, devices)
    with preparation.precision_context(config):
        state = devices.replicate(preparation.blank_state(config, setup.workload))
        return programs.compile_training(setup, state)[0].as_text() or ""


@pytest.mark.parametrize(("target", "fused"), [("t4", False), ("a100", True), ("h100", True)])
def test_a_gpu_without_triton_computes_the_loss_in_plain_operations(target, fused):
    """XLA refuses a program with a Triton kernel for a T4."""
    assert topology(target, 1, 1).triton == fused
    assert ("mixture_loss" in epoch_of_small(target)) == fused


@pytest.mark.parametrize(("target", "mode"), PLAIN)
def test_a_step_without_the_kernel_keeps_to_its_launches_and_memory(target, mode, tmp_path):
    plain = in_mode(changed(PAPER, model__fused=False), mode, 1)
    readings = dict(compiled(plain, topology(target, 1, 1, tmp_path), tmp_path))
    assert faults(readings["epoch"], Asked(mode, 1, PARAMETERS, PLAIN[target, mode])) == []


def test_without_pallas_triton_a_gpu_computes_the_loss_in_plain_operations(monkeypatch):
    """JAX has announced its end."""
    monkeypatch.setattr(autoencoder, "loss_kernel", None)
    assert "mixture_loss" not in epoch_of_small("h100")


@pytest.mark.parametrize("hosts", [1, 2])
def test_gpus_of_one_host_are_joined_by_nvlink_and_two_hosts_are_not(hosts):
    """JAX 0.12 chooses its own kernel for an all-reduce by that; either way it is one all-reduce, and no other launch is it."""
    devices = topology("h100", 8, hosts)
    weights = devices.shard(np.ones((8, 1), np.float32))
    program = devices.compile(lambda ones: pmean(jnp.broadcast_to(ones, PARAMETERS)), weights, sharded=1)
    assert ("__triton_collective" in (program.as_text() or "")) == (jax.__version_info__ >= (0, 12) and hosts == 1)
    assert read(program, steps=1).meetings == [("all-reduce", 4 * PARAMETERS)]
