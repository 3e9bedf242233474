"""Measurements in a process of their own: modules that print one line of JSON at their end."""

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
      devices: virtual ones, on a CPU.

    Raises:
      SystemExit: it failed; what it said is on standard error. Of bad input it has said all in a line.
    """
    environ = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
    if done.returncode == InputError.exit_code:
        raise SystemExit(done.returncode)
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(words)} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])
