"""The GPUs of a host as a fake `nvidia-smi` lists them; what `make` installs; one for each of several programs."""

import re
import subprocess

import pytest

from gmmae.system import nvidia
from gmmae.system.nvidia import places, visible
from tests.launched import ROOT

H100, V100, K80 = ("580.65.06", "9.0", "NVIDIA H100 80GB HBM3"), ("580.65.06", "7.0", "V100"), ("470.82.01", "", "Tesla K80")


@pytest.fixture
def smi(shell_scripts, monkeypatch):
    """Puts a host's `nvidia-smi` first on the path; without a GPU it says so."""
    for name in (nvidia.VISIBLE, *nvidia.MEMORY):
        monkeypatch.delenv(name, raising=False)

    def install(gpu, code=0):
        driver, capability, name = gpu or ("", "", "")
        answers = {
            "driver_version,name": f"{driver}, {name}\n" * 2 * bool(gpu),
            "compute_cap": capability,
            "uuid": "GPU-1a\nGPU-2b" * bool(gpu),
        }
        lines = [f'"--query-gpu={fields} --format=csv,noheader") answer="{answer}";;' for fields, answer in answers.items()]
        ending = ["esac", 'echo "${answer:-No devices were found}"', f"exit {code}"]
        shell_scripts(**{"nvidia-smi": "\n".join(['case "$*" in', *lines, *ending])})

    return install


CASES = {
    "H100": (H100, "cuda13", ""),
    "a driver of CUDA 12": (("535.183.01", "8.0", "A100"), "cuda12", ""),
    "before Turing": (V100, "cuda12", ""),
    "an old driver": (K80, "", "the GPU of this host, Tesla K80: update its driver, 470.82.01, to 525 or later"),
    "an old GPU": (("535.1", "3.7", "K80"), "", "it takes a GPU of compute capability 5.2 or later; this has 3.7"),
    "no GPU": (None, "", ""),
}


@pytest.mark.parametrize(("gpu", "extra", "warning"), CASES.values(), ids=CASES)
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
        versions = [
            set(re.findall(rf"^{name}(==.*)$", pins, re.M)) for name in ("jax", f"jax-{extra}-plugin", f"jax-{extra}-pjrt")
        ]
        assert versions[0]
        assert versions == versions[:1] * 3


def test_a_gpu_that_is_not_used_is_told_unless_it_was_ruled_out(smi):
    smi(H100)
    line = nvidia.unused("cpu", {})
    assert "NVIDIA H100 80GB HBM3, is not used" in line
    assert line.endswith("pip install -c constraints.txt -e '.[cuda13]'")
    for platform, environ in (("gpu", {}), ("cpu", {"JAX_PLATFORMS": "cpu"}), ("cpu", {"CUDA_VISIBLE_DEVICES": ""})):
        assert nvidia.unused(platform, environ) == ""
    smi(None)
    assert nvidia.unused("cpu", {}) == ""


@pytest.mark.parametrize(
    ("value", "names"),
    [("2,3", ["2", "3"]), (" GPU-x , MIG-y", ["GPU-x", "MIG-y"]), ("", []), ("0,-1,1", ["0"]), ("NoDevFiles", [])],
)
def test_gpus_are_those_that_nvidia_smi_lists_or_that_the_user_lets_be_seen(tmp_path, smi, monkeypatch, value, names):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert places(4) == visible() == []  # without nvidia-smi
    for gpu, code, listed in ((H100, 9, []), (None, 0, []), (H100, 0, ["GPU-1a", "GPU-2b"])):
        smi(gpu, code=code)
        assert visible() == listed
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible() == names


@pytest.mark.parametrize(
    ("programs", "given", "shares"),
    [(2, None, [None] * 2), (3, None, ["0.375"] * 2), *((4, name, [None] * 2) for name in nvidia.MEMORY)],
)
def test_each_program_has_a_gpu_or_a_share_of_its_memory_unless_the_user_has_said(smi, monkeypatch, programs, given, shares):
    """Three on two: one GPU has two of them. JAX takes 75 % for one."""
    smi(H100)
    if given:
        monkeypatch.setenv(given, "0.2")
    found = places(programs)
    assert [place[nvidia.VISIBLE] for place in found] == ["GPU-1a", "GPU-2b"]
    assert [place.get("XLA_CLIENT_MEM_FRACTION") for place in found] == shares
