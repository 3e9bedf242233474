import pytest

from gmmae.data.extraction import processes

PATCHED_WORKER = (
    "import os, signal, sys, gmmae.data.extraction.processes as p; real = p.extract; p.extract = lambda t, o: {}; p.serve()"
)


@pytest.fixture
def patch_worker(monkeypatch):
    """Lets workers compute another expression of the task `t`; `real(t, o)` is the extraction."""
    return lambda expression: monkeypatch.setattr(processes, "WORKER_PROGRAM", PATCHED_WORKER.format(expression))
