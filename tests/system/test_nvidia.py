"""The GPUs of a host as a fake `nvidia-smi` lists them; what `make` installs; one for each of several programs."""

import subprocess
from pathlib import Path

import pytest

from gmmae.system import nvidia
from gmmae.system.nvidia import places, visible

ROOT = Path(__file__).parent.parent.parent
H100, V100, K80 = ("580.65.06", "9.0", "NVIDIA H100 80GB HBM3"), ("580.65.06", "7.0", "V100"), ("470.82.01", "", "Tesla K80")


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts a host's `nvidia-smi` first on the path; without a GPU it says so."""
    for name in (nvidia.VISIBLE, *nvidia.MEMORY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def install(gpu, uuids=("GPU-1a", "GPU-2b"), code=0):
        driver, capability, name = gpu or ("", "", "")
        answers = {
            "driver_version,name": f"{driver}, {name}\n" * 2 * bool(gpu),
            "compute_cap": capability,
            "uuid": "\n".join(uuids) * bool(gpu),
        }
        lines = [f'"--query-gpu={fields} --format=csv,noheader") answer="{answer}";;' for fields, answer in answers.items()]
        program = tmp_path / "nvidia-smi"
        ending = ["esac", 'echo "${answer:-No devices were found}"', f"exit {code}"]
        program.write_text("\n".join(["#!/bin/sh", 'case "$*" in', *lines, *ending]))
        program.chmod(0o755)

    return install


CASES = {
    "H100": (H100, "cuda13", ""),
    "a driver of CUDA 12": (("535.183.01", "8.0", "A100"), "cuda12", ""),
    "before Turing": (V100, "cuda12", ""),
    "an old driver": (K80, "", "the GPU of this host, Tesla K80: update its driver, 470.82.01, to 525 or later"),
    "an old GPU": (("535.1", "3.7", "K80"), "", "it takes a GPU of compute capability 5.2 or later; this has 3.7"),
    "no GPU": (None, "", ""),
}


@pytest.mark.parametrize(("gpu", "extra", "warning"), CASES.values(), ids=CASES.keys())
def test_make_installs_what_fits_the_gpu(tmp_path, smi, gpu, extra, warning):
    smi(gpu)
    command = ["make", "-n", f"VENV={tmp_path}/venv", f"{tmp_path}/venv/ready"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"-e '.[test{',' if extra else ''}{extra}]'" in made.stdout
    assert warning in made.stderr
    assert bool(made.stderr) == bool(warning)


def test_the_extras_are_the_projects_and_pinned():
    project, pins = ((ROOT / name).read_text() for name in ("pyproject.toml", "constraints.txt"))
    for extra in nvidia.OLDEST:
        assert f'\n{extra} = ["jax[{extra}]"]\n' in project
        versions = [line.removeprefix("jax") for line in pins.splitlines() if line.startswith("jax==")]
        for package in (f"jax-{extra}-plugin", f"jax-{extra}-pjrt"):
            assert [line.removeprefix(package) for line in pins.splitlines() if line.startswith(package)] == versions


def test_a_gpu_that_is_not_used_is_told_unless_it_was_ruled_out(smi):
    smi(H100)
    line = "the GPU of this host, NVIDIA H100 80GB HBM3, is not used; to use it: pip install -c constraints.txt -e '.[cuda13]'"
    assert nvidia.unused("cpu", {}) == line
    for platform, environ in (("gpu", {}), ("cpu", {"JAX_PLATFORMS": "cpu"}), ("cpu", {"CUDA_VISIBLE_DEVICES": ""})):
        assert nvidia.unused(platform, environ) == ""
    smi(None)
    assert nvidia.unused("cpu", {}) == ""


def test_no_driver_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.delenv(nvidia.VISIBLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.find() is None
    assert nvidia.visible() == []
    assert places(4) == []


@pytest.mark.parametrize(("gpu", "code", "names"), [(H100, 0, ["GPU-1a", "GPU-2b"]), (H100, 9, []), (None, 0, [])])
def test_gpus_are_those_that_nvidia_smi_lists(smi, gpu, code, names):
    smi(gpu, code=code)
    assert visible() == names


@pytest.mark.parametrize(
    ("value", "names"),
    [("2,3", ["2", "3"]), (" GPU-x , MIG-y", ["GPU-x", "MIG-y"]), ("", []), ("-1", []), ("0,-1,1", ["0"]), ("NoDevFiles", [])],
)
def test_what_the_user_lets_be_seen_goes_before_what_is_there(smi, monkeypatch, value, names):
    smi(H100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible() == names


def test_as_many_programs_as_gpus_have_one_each_and_all_of_its_memory(smi):
    smi(H100)
    assert places(2) == [{"CUDA_VISIBLE_DEVICES": "GPU-1a"}, {"CUDA_VISIBLE_DEVICES": "GPU-2b"}]


def test_more_programs_than_gpus_divide_memory(smi):
    """Three on two: one GPU has two of them. JAX takes 75 % for one."""
    smi(H100)
    assert [place["XLA_CLIENT_MEM_FRACTION"] for place in places(3)] == ["0.375", "0.375"]


@pytest.mark.parametrize("name", nvidia.MEMORY)
def test_what_the_user_has_said_of_memory_stays(smi, monkeypatch, name):
    smi(H100)
    monkeypatch.setenv(name, "0.2")
    assert places(4) == [{"CUDA_VISIBLE_DEVICES": "GPU-1a"}, {"CUDA_VISIBLE_DEVICES": "GPU-2b"}]
