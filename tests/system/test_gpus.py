import pytest

from gmmae.system.gpus import places, visible

LISTED = {
    "two": ("GPU 0: NVIDIA A100 (UUID: GPU-1a)\nGPU 1: NVIDIA A100 (UUID: GPU-2b)", 0, ["GPU-1a", "GPU-2b"]),
    "divided": ("GPU 0: NVIDIA H100 (UUID: GPU-1a)\n  MIG 1g.10gb Device 0: (UUID: MIG-9)", 0, ["GPU-1a"]),
    "no driver": ("NVIDIA-SMI has failed because it could not communicate with the driver", 9, []),
    "none": ("No devices found.", 0, []),
}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host on which the only program is an nvidia-smi that says what it is told to."""
    for name in ("CUDA_VISIBLE_DEVICES", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    def says(text: str, code: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
        program.chmod(0o755)

    return says


@pytest.mark.parametrize(("text", "code", "names"), LISTED.values(), ids=LISTED.keys())
def test_gpus_are_those_that_nvidia_smi_lists(host, text, code, names):
    host(text, code)
    assert visible() == names


def test_a_host_without_nvidia_smi_has_none(host):
    assert visible() == []
    assert places(4) == []


@pytest.mark.parametrize(
    ("given", "names"),
    [("2,3", ["2", "3"]), (" GPU-x , MIG-y", ["GPU-x", "MIG-y"]), ("", []), ("-1", []), ("0,-1,1", ["0"]), ("NoDevFiles", [])],
)
def test_what_the_user_lets_be_seen_goes_before_what_is_there(host, monkeypatch, given, names):
    host(LISTED["two"][0])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible() == names


def test_as_many_programs_as_gpus_have_one_each_and_all_of_its_memory(host):
    host(LISTED["two"][0])
    assert places(2) == [{"CUDA_VISIBLE_DEVICES": "GPU-1a"}, {"CUDA_VISIBLE_DEVICES": "GPU-2b"}]


def test_more_programs_than_gpus_divide_memory(host):
    """Three on two: one GPU has two of them. JAX takes 75 % for one."""
    host(LISTED["two"][0])
    assert [place["XLA_CLIENT_MEM_FRACTION"] for place in places(3)] == ["0.375", "0.375"]


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"])
def test_what_the_user_has_said_of_memory_stays(host, monkeypatch, name):
    host(LISTED["two"][0])
    monkeypatch.setenv(name, "0.2")
    assert places(4) == [{"CUDA_VISIBLE_DEVICES": "GPU-1a"}, {"CUDA_VISIBLE_DEVICES": "GPU-2b"}]
