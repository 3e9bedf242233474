import os
import sys

from tests.launched import python


def test_pytorch_is_not_imported_with_tensorboardx_and_can_be_afterwards(tmp_path):
    (tmp_path / "torch.py").write_text("print('PyTorch')")
    program = "import gmmae.system.tensorboardx\nprint('and then')\nimport torch"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    assert python("-c", program, env=environ).stdout.split("\n")[:2] == ["and then", "PyTorch"]
