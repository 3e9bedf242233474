"""Places from options and environments; the environments are those of Slurm 22.05 and Open MPI 4.1 and 5.0."""

import re

import pytest

from gmmae.config.rules import ConfigError
from gmmae.config.schema import DistributedConfig
from gmmae.multihost.launchers import PORTS, Place, find

SRUN = {
    "SLURM_JOB_ID": "71",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
ONE_HOST = {"SLURM_STEP_NODELIST": "gpu03", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_LOCALID": "3", "SLURM_NODEID": "0"}
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
# Open MPI 5 has no address.
MPIRUN_5 = {key: value for key, value in MPIRUN.items() if "uri" not in key} | {"PMIX_NAMESPACE": "prterun-host-77@1"}
BATCH = {key: value for key, value in SRUN.items() if "STEP" not in key} | {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
HAND = {"coordinator": "host:1234", "num_processes": 2, "process_id": 1}
SHOWN = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ({}, {}),
        ({}, SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}),
        ({}, MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}),
        ({"auto": False}, SRUN),  # the launcher is not asked
        ({}, BATCH),  # a batch script is no step
        (HAND | {"num_processes": 1, "process_id": 0}, {}),
    ],
)
def test_alone(options, environment):
    assert find(DistributedConfig(**options), environment) is None


@pytest.mark.parametrize(
    ("options", "environment", "host", "process", "devices"),
    [
        ({}, SRUN, "gpu03", 3, (1,)),
        ({}, SRUN | ONE_HOST, "127.0.0.1", 3, (3,)),
        ({}, SRUN | {"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, "gpu03", 3, ()),
        ({}, SRUN | {SHOWN: "0,1,2,3"}, "gpu03", 3, (1,)),
        ({}, SRUN | {SHOWN: "3"}, "gpu03", 3, ()),  # the launcher has bound it already
        ({}, MPIRUN, "10.96.0.1", 2, (0,)),
        ({}, MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "127.0.0.1", 2, (0,)),
        ({"coordinator": "host:9"}, MPIRUN_5, "host", 2, (0,)),
        (HAND | {"num_processes": 4}, {}, "host", 1, ()),
        (HAND | {"num_processes": 4, "coordinator": "[::1]:1234", "local_devices": (2, 3)}, SRUN, "[::1]", 1, (2, 3)),
    ],
)
def test_the_place_of_a_process(options, environment, host, process, devices):
    place = find(DistributedConfig(**options), environment)
    assert place is not None
    assert place == Place(place.coordinator, 4, process, devices)
    found, _, port = place.coordinator.rpartition(":")
    assert found == host
    assert place.coordinator == options.get("coordinator") or int(port) in PORTS


def test_all_tasks_of_a_job_meet_at_one_port_and_those_of_another_job_at_another():
    ports = [
        find(DistributedConfig(), environment)
        for environment in (SRUN, SRUN | {"SLURM_PROCID": "0"}, SRUN | {"SLURM_JOB_ID": "72"})
    ]
    first, same, other = (place.coordinator for place in ports if place)
    assert first == same != other


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({}, MPIRUN_5, "all be given, or come from srun or mpirun; got no distributed.coordinator"),
        (HAND | {"coordinator": "auto"}, {}, "got no distributed.coordinator"),
        (HAND | {"num_processes": "auto"}, {}, "got no distributed.num_processes"),
        (
            HAND | {"process_id": "auto", "num_processes": "auto"},
            {},
            "got no distributed.num_processes and no distributed.process_id",
        ),
        (HAND | {"process_id": 2}, {}, "process_id must be below distributed.num_processes, 2; got 2: count from 0"),
    ],
)
def test_half_of_it_or_a_number_out_of_range_is_refused(options, environment, message):
    with pytest.raises(ConfigError, match=re.escape(message) + "$"):
        find(DistributedConfig(**options), environment)
