"""Places from options and environments; the environments are those of Slurm 22.05 and Open MPI 4.1 and 5.0."""

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
MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
AUTO = DistributedConfig()


def by_hand(**changes):
    return DistributedConfig(**{"coordinator": "host:1234", "num_processes": 2, "process_id": 1} | changes)


def test_alone_by_default_and_where_the_launcher_started_one_or_is_not_asked():
    assert find(AUTO, {}) is None
    assert find(AUTO, SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None
    assert find(AUTO, MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}) is None
    assert find(DistributedConfig(auto=False), SRUN) is None


def test_a_batch_script_is_no_step():
    batch = {key: value for key, value in SRUN.items() if "STEP" not in key} | {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    assert find(AUTO, batch) is None


def test_srun():
    place = find(AUTO, SRUN)
    assert place is not None
    host, port = place.coordinator.split(":")
    assert place == Place(place.coordinator, 4, 3, (1,))
    assert host == "gpu03"
    assert int(port) in PORTS
    other_task = find(AUTO, SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"})
    assert other_task == place._replace(process_id=0, local_devices=(0,))
    other_job = find(AUTO, SRUN | {"SLURM_JOB_ID": "72"})
    assert other_job is not None
    assert other_job.coordinator != place.coordinator


def test_the_tasks_of_one_host_meet_on_its_loopback_interface():
    one = {"SLURM_STEP_NODELIST": "gpu03", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_LOCALID": "3", "SLURM_NODEID": "0"}
    place = find(AUTO, SRUN | one)
    assert place is not None
    assert place.coordinator.startswith("127.0.0.1:")
    assert place.local_devices == (3,)


@pytest.mark.parametrize(
    ("tasks", "visible", "devices"),
    [("1(x4)", None, ()), ("2(x2)", None, (1,)), ("2(x2)", "0,1,2,3", (1,)), ("2(x2)", "3", ())],
    ids=["a process a host has all", "a process a GPU", "the same with all visible", "the launcher has bound it already"],
)
def test_devices_of_a_process(tasks, visible, devices):
    place = find(AUTO, SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks} | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    assert place is not None
    assert place.local_devices == devices


def test_mpirun():
    place = find(AUTO, MPIRUN)
    assert place is not None
    assert place == Place(place.coordinator, 4, 2, (0,))
    assert place.coordinator.startswith("10.96.0.1:")
    one_host = find(AUTO, MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert one_host == place._replace(coordinator=place.coordinator.replace("10.96.0.1", "127.0.0.1"))


def test_mpirun_without_an_address_on_several_hosts_needs_the_coordinator():
    """Open MPI 5 has no such variable."""
    without = {key: value for key, value in MPIRUN.items() if "uri" not in key} | {"PMIX_NAMESPACE": "prterun-host-77@1"}
    with pytest.raises(ConfigError, match=r"all be given, or come from srun or mpirun; got no distributed\.coordinator"):
        find(AUTO, without)
    assert find(DistributedConfig(coordinator="host:9"), without) == Place("host:9", 4, 2, (0,))


def test_by_hand():
    assert find(by_hand(), {}) == Place("host:1234", 2, 1)
    assert find(by_hand(coordinator="[::1]:1234", local_devices=(2, 3)), SRUN) == Place("[::1]:1234", 2, 1, (2, 3))
    assert find(by_hand(num_processes=1, process_id=0), {}) is None


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"coordinator": "auto"}, "got no distributed.coordinator"),
        ({"num_processes": "auto"}, "got no distributed.num_processes"),
        ({"process_id": "auto", "num_processes": "auto"}, "got no distributed.num_processes and no distributed.process_id"),
    ],
)
def test_half_of_it_is_refused(changes, missing):
    with pytest.raises(ConfigError) as caught:
        find(by_hand(**changes), {})
    assert str(caught.value).endswith(missing)


def test_a_process_id_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"process_id must be below distributed\.num_processes, 2; got 2: count from 0"):
        find(by_hand(process_id=2), {})
