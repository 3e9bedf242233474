import os
import subprocess
import sys


def test_pytorch_is_not_imported_with_tensorboardx_and_can_be_afterwards(tmp_path):
    (tmp_path / "torch.py").write_text("print('PyTorch')")
    program = "import gmmae.system.tensorboardx\nprint('and then')\nimport torch"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["and then", "PyTorch"]
