"""Runs measurements in their own processes, by modules that print one line of JSON at their end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gmmae.system.errors import InputError

ROOT = Path(__file__).parent.parent


def ask(module: str, *words: str, devices: int = 1) -> Any:
    """Runs `python -m module words` and reads the last line that it prints.

    Args:
      module: the module to run.
      *words: its arguments.
      devices: number of virtual devices on a CPU.

    Raises:
      SystemExit: the process failed. Its message is on standard error.
    """
    environ = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    if done.returncode == InputError.exit_code:
        raise SystemExit(done.returncode)
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(words)} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])
