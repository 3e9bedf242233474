import os

import pytest

from gmmae.config.schema import Config, OptimConfig, ParallelConfig
from gmmae.multihost import environment
from gmmae.multihost.environment import default_cpu_devices, prepare, require_prepared
from gmmae.system.environment import CPU_DEVICES, THREADS, cores
from gmmae.system.errors import InputError
from tests.launched import python

EXACT = ParallelConfig(deterministic=True, deterministic_shards=16)


def test_only_the_exact_reduction_fixes_the_threads(monkeypatch):
    monkeypatch.setenv(THREADS, "3")
    prepare(Config())
    assert os.environ[THREADS] == "3"
    prepare(Config(parallel=EXACT))
    assert os.environ[THREADS] == "16"
    require_prepared(EXACT, cpu_devices=16)


@pytest.mark.parametrize(
    ("threads", "devices", "message"),
    [
        # More devices would bring more threads with them.
        ("16", 17, "at most parallel.deterministic_shards = 16 CPU devices .*; got 17: lower JAX_NUM_CPU_DEVICES"),
        ("", 1, "needs PJRT_NPROC = parallel.deterministic_shards = 16 .*; got '': set it"),
        ("2", 1, "needs PJRT_NPROC = parallel.deterministic_shards = 16 .*; got '2': set it"),
    ],
)
def test_other_numbers_of_devices_or_threads_are_refused_on_a_cpu(monkeypatch, threads, devices, message):
    monkeypatch.setenv(THREADS, threads)
    with pytest.raises(InputError, match=message):
        require_prepared(EXACT, devices)
    require_prepared(EXACT, cpu_devices=0)  # on a GPU


@pytest.mark.parametrize(
    ("config", "alone", "devices"),
    [
        (Config(), True, "3"),
        (Config(scaling="weak", parallel=ParallelConfig(simulate_devices=8)), True, "3"),
        (Config(scaling="local", parallel=ParallelConfig(simulate_devices=9)), True, "3"),  # three replicas each
        (Config(scaling="local", parallel=ParallelConfig(simulate_devices=8)), True, "1"),  # replicas that 3 do not divide
        (Config(scaling="local"), True, "1"),  # a replica a device
        (Config(scaling="weak"), True, "1"),  # its batch follows the devices
        (Config(parallel=ParallelConfig(devices=1)), True, None),
        (Config(), False, None),  # beside others
    ],
)
def test_a_run_takes_a_device_a_core_where_its_batch_follows_no_devices(monkeypatch, config, alone, devices):
    monkeypatch.setattr(environment, "cores", lambda: 3)
    monkeypatch.setattr(environment, "devices_are_chosen", lambda: False)
    prepare(config, alone, environ := {})
    assert environ.get(CPU_DEVICES) == devices


TRAININGS = """
import os
import gmmae
from gmmae.multihost import environment

environment.cores = lambda: 2
before = dict(os.environ)
for scaling, samples in (("strong", 28), ("weak", 28), ("strong", 7)):
    data = {"data__ndim": 2, "data__shape": 8, "data__samples": samples, "data__validation": 6}
    model = {"model__filters": (3,), "model__kernels": (3,), "model__components": 2}
    options = {"optim__batch_size": 8, "stop__max_epochs": 1, "log__tensorboard": False}
    config = gmmae.configure(scaling=scaling, **data, **model, **options)
    record = gmmae.train(config, f"{scaling}_{samples}", quiet=True)
    print(record.devices, record.global_batch)
print(os.environ == before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "devices"),
    [({}, "2 8 1 8 1 1"), ({"JAX_NUM_CPU_DEVICES": "1"}, "1 8 1 8 1 1")],
)
def test_devices_follow_the_run_and_no_earlier_one_and_nothing_is_left_in_the_environment(tmp_path, given, devices):
    """The last run has one sample for training."""
    variables = {name: value for name, value in os.environ.items() if name != CPU_DEVICES} | given
    done = python("-c", TRAININGS, cwd=tmp_path, env=variables)
    assert done.stdout.split() == [*devices.split(), "True"], done.stderr


def test_a_device_a_core_has_bounds(monkeypatch):
    exact, small_batch = Config(parallel=ParallelConfig(deterministic=True)), Config(optim=OptimConfig(batch_size=2))
    counts = {}
    for number in (1, 3, 64):
        monkeypatch.setattr(environment, "cores", lambda number=number: number)
        counts[number] = [
            default_cpu_devices(Config()),
            default_cpu_devices(small_batch),
            default_cpu_devices(exact),
            default_cpu_devices(Config(), 2),
        ]
    assert counts == {1: [1, 1, 1, 1], 3: [3, 2, 2, 1], 64: [4, 2, 4, 4]}


@pytest.mark.parametrize(("quota", "count"), [("max 100000", 3), ("250000 100000", 2), ("50000 100000", 1)])
def test_cores_are_those_that_the_process_may_use_and_no_threads(monkeypatch, quota, count):
    texts = dict.fromkeys((f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in (0, 1)), "0-1")
    texts["/sys/fs/cgroup/cpu.max"] = quota

    def read_text(path):
        if str(path) not in texts:
            raise FileNotFoundError
        return texts[str(path)]

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    monkeypatch.setattr("pathlib.Path.read_text", read_text)
    assert cores() == count
