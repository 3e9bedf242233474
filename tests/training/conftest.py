"""Runs without an interruption, each computed once for all tests that compare with it."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

from gmmae.config.schema import Config
from gmmae.training.records import Record
from tests.small import Recorder, finish, small


class Whole(NamedTuple):
    """A run, its work directory, its record and what its display was told."""

    config: Config
    workdir: Path
    record: Record
    display: Recorder


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Returns a run by its changes of `SMALL`; no test may write to its work directory."""

    @cache
    def throughout(_, **changes):
        config, workdir = small(**changes), tmp_path_factory.mktemp("whole")
        run = Whole(config, workdir, *finish(config, workdir))
        rows = run.display.rows
        assert len({row.val_loss for row in rows}) == len(rows), "losses that do not change would say nothing"
        return run

    return lambda **changes: throughout(jax.config.read("jax_disable_most_optimizations"), **changes)
