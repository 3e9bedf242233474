"""An extraction that fails where a file beside a scan says so: `b.killed`, `b.hangs`, `b.bug`."""

import os
import signal
import time

from gmmae.data.extraction import prepare, readings
from gmmae.data.extraction.extract import extract
from gmmae.data.settings import DataConfig

FAULTS = {"killed": lambda: os.kill(os.getpid(), signal.SIGKILL), "hangs": lambda: time.sleep(600), "bug": lambda: 1 / 0}


def extract_or_fail(task, config):
    os.write(1, b"what a library prints")
    for name, fail in FAULTS.items():
        mark = task.file.with_suffix(f".{name}")
        if mark.exists():
            if mark.read_text() == "once":
                mark.unlink()
            fail()
    return extract(task, config)


def die():
    os._exit(3)


def run(root, cache):
    readings.extract = extract_or_fail
    prepare.prepare(DataConfig("luna16", root, cache=cache, workers=2))
