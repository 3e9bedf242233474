"""Compiles the training epoch of the checkout on PYTHONPATH, and runs it once for each line that it reads.

It prints the number of steps, and then the seconds of each epoch. It may use only what earlier commits have too.
"""

import json
import sys
import time

import jax

from benchmarks.epoch import compiled_epoch
from gmmae.training import compilation
from gmmae.workloads.configuration import configure

asked = json.loads(sys.argv[1])
config = configure(asked["config"], **{key.replace(".", "__"): value for key, value in asked["settings"].items()})
program, arguments = compiled_epoch(config)
print(compilation.prepare(config).train_plan.steps, flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    print(time.perf_counter() - began, flush=True)
