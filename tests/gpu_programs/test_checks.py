"""Each check finds what it is for: programs that break one promise, compiled for H100s that are not there."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.device_programs import Reading, compiled, in_mode, read, topology
from gmmae.config.schema import Config, changed
from gmmae.config.toml import find
from gmmae.models import mixture
from gmmae.training import compilation, parallel, programs, step
from gmmae.workloads import contract
from gmmae.workloads.configuration import read_config
from tests.gpu_programs.checks import Asked, Bound, faults
from tests.small import small

SMALL = small(data__augment=False)
AMPLE = Bound(launches=1000, temporary_mb=1000.0)
losses = contract.losses
pmean = step.pmean


def epoch(config: Config = SMALL, devices: int = 1) -> Reading:
    [_, reading] = next(compiled(config, topology("h100", devices, 1)))
    return reading


@pytest.fixture(scope="module")
def parameters() -> int:
    setup = compilation.prepare(SMALL, topology("h100", 1, 1))
    return compilation.parameter_count(compilation.blank_state(SMALL, setup.workload).params)


@pytest.fixture(scope="module")
def sound() -> Reading:
    return epoch()


def test_a_sound_program_has_no_faults_and_a_launch_too_many_is_one(sound, parameters):
    asked = Asked("float32", 1, parameters, AMPLE)
    assert faults(sound, asked) == []
    count = sum(sound.kernels.values())
    [fault] = faults(sound, asked._replace(bound=Bound(count - 1, 1000.0)))
    assert fault == f"a step may have {count - 1} launches; got {count}"


def test_what_divides_a_steps_graph_is_found(monkeypatch, tmp_path):
    """XLA makes a copy of the update by which `lax.scan` collects the losses, and leaves it out of graphs."""

    def collecting(state, values, count, samples, slots, *, algorithm):
        epoch_key = jax.random.fold_in(jax.random.key(values.seed), values.epoch)

        def one(state, of_step):
            indices, weights, rate = of_step
            batch = step.Batch(step.take(samples, indices), step.sample_keys(epoch_key, indices))
            return step.train_step(state, batch, weights, rate, algorithm=algorithm)

        return lax.scan(one, state, (slots.indices, slots.weights, values.learning_rates))

    monkeypatch.setattr(programs, "train_steps", collecting)
    paper = changed(read_config(find("paper")), data__samples=288, data__validation=128)
    [_, reading] = next(compiled(paper, topology("h100", 1, 1, tmp_path), tmp_path))
    [fault] = faults(reading, Asked("float32", 1, 0, AMPLE._replace(commands=1)))
    assert fault.startswith("the host's commands in a step may be 1; got {'kCommandBuffer': 2, ")


def test_a_second_all_reduce_is_found(monkeypatch, parameters):
    def twice(local):
        loss, gradient = pmean(local)
        return lax.pmean(loss * loss, parallel.AXIS), gradient

    asked = Asked("float32", 2, parameters, AMPLE)
    assert faults(epoch(devices=2), asked) == []
    monkeypatch.setattr(step, "pmean", twice)
    [fault] = faults(epoch(devices=2), asked)
    size = f"{4 * (parameters + 1):,}"
    assert fault == (
        f"devices must meet in 1 all-reduce of {size} bytes; got 1 all-reduce of {size} bytes, 1 all-reduce of 4 bytes"
    )


def test_a_callback_to_the_host_cannot_be_compiled_and_would_be_found(monkeypatch, sound, parameters):
    """JAX refuses a callback for a GPU that is not there. How one reads in XLA's text: `tests/step.hlo`."""

    def told(*given):
        values = losses(*given)
        jax.debug.callback(lambda value: None, values.mean())
        return values

    monkeypatch.setattr(programs, "losses", told)
    with pytest.raises(RuntimeError, match="Unknown backend: 'gpu' requested"):
        epoch()
    reading = sound._replace(host=["xla_ffi_python_gpu_callback"])
    [fault] = faults(reading, Asked("float32", 1, parameters, AMPLE))
    assert fault == "nothing may go to or come from the host in a step; got xla_ffi_python_gpu_callback"


def test_a_polynomial_that_is_kept_for_the_gradient_is_found(monkeypatch, sound, parameters):
    """32 · 50 × 4096 numbers, 26 MB, which the optimiser of the compiler can neither drop nor compute again."""

    @jax.custom_vjp
    def holding(values, polynomial):
        return values

    def forward(values, polynomial):
        return values, lax.optimization_barrier(polynomial)

    def backward(polynomial, gradient):
        return gradient * (1 + jnp.sin(polynomial).mean()), jnp.zeros_like(polynomial)

    holding.defvjp(forward, backward)

    def kept(*given):
        values = losses(*given)
        return holding(values, jnp.exp(jnp.arange(1600.0)[:, None] * values.mean() + jnp.arange(4096.0)))

    monkeypatch.setattr(programs, "losses", kept)
    bound = Bound(1000, sound.temporary / 1e6 + 20)
    [fault] = faults(epoch(), Asked("float32", 1, parameters, bound))
    assert fault.startswith("temporary memory may be ")


@pytest.fixture
def traced_anew() -> Iterator[None]:
    """JAX keeps what it has traced by function and shapes, and does not see that a constant has changed."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("traced_anew")
def test_tf32_in_the_density_is_found(monkeypatch, parameters):
    """Compiles the plain form, because the fused kernel has no products."""
    monkeypatch.setattr(mixture, "FULL", lax.Precision.DEFAULT)
    for mode in ("float32", "tf32"):
        [fault] = faults(epoch(in_mode(small(model__fused=False), mode, 1)), Asked(mode, 1, parameters, AMPLE))
        assert fault.startswith("only convolutions and dense layers may be in TF32, and only where it is asked for; got ")


def test_float32_where_tf32_was_asked_for_is_found(sound, parameters):
    [fault] = faults(sound, Asked("tf32", 1, parameters, AMPLE))
    assert fault.startswith("where TF32 is asked for, all convolutions and dense layers must be in it; got ")


def test_loops_that_ask_the_host_are_found(parameters):
    reading = epoch(in_mode(SMALL, "exact", 1))
    assert faults(reading, Asked("exact", 1, parameters, AMPLE)) == []
    [fault] = faults(reading, Asked("float32", 1, parameters, AMPLE))
    assert fault.startswith("no loop in a step may have a length that the host must ask for; got ")


@pytest.mark.parametrize(("deterministic", "launches"), [(False, 1), (True, 0)])
def test_sums_in_no_order_are_found_and_deterministic_operations_have_none(deterministic, launches):
    """The option that `Devices.compile` passes on for the exact reduction."""

    def histogram(places):
        return jnp.zeros(64).at[places % 64].add(jnp.sin(places.astype(jnp.float32)))

    devices = topology("h100", 1, 1)
    places = devices.shard(np.arange(1000, dtype=np.int32)[None])
    reading = read(devices.compile(histogram, places, sharded=1, deterministic=deterministic), steps=1)
    assert reading.unordered == launches
    asked = Asked("exact", 1, 0, AMPLE)
    expected = ["the exact reduction must add in a fixed order; got 1 launches that do not"] * launches
    assert faults(reading, asked) == expected


@pytest.mark.parametrize("hosts", [1, 2])
def test_gpus_of_one_host_are_joined_by_nvlink_and_two_hosts_are_not(hosts):
    """JAX 0.12 chooses its own kernel for an all-reduce by that; either way it is one all-reduce, and no other launch is it."""
    devices = topology("h100", 8, hosts)
    weights = devices.shard(np.ones((8, 1), np.float32))
    program = devices.compile(lambda ones: pmean(jnp.broadcast_to(ones, 493_493)), weights, sharded=1)
    assert ("__triton_collective" in (program.as_text() or "")) == (jax.__version_info__ >= (0, 12) and hosts == 1)
    assert read(program, steps=1).meetings == [("all-reduce", 4 * 493_493)]
