"""A run has the bits of one throughout, in whatever parts it is computed, and wherever its samples come from.

Bits on any number of devices are in test_exact.py, and those of processes in test_distributed.py.
"""

from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest

from gmmae.training import loop
from gmmae.training.records import epoch_ends, read_history
from tests.small import CHEAP, EXACT, RATES, Recorder, checkpoint_epochs, fail, fingerprint, interrupt, small
from tests.volume_sources import from_source

pytestmark = pytest.mark.usefixtures("optimised")


class Part(NamedTuple):
    """Changes of a run, and the end of an epoch at which it is interrupted or fails; 0: it comes to its own end."""

    changes: dict[str, Any] = {}  # noqa: RUF012
    at: int = 0
    end: Any = interrupt


class Case(NamedTuple):
    """Changes of the run throughout, and the parts in which it is computed once more. Its samples may be from a source."""

    of: dict[str, Any]
    parts: tuple[Part, ...] = (Part(),)
    source: bool = False


def epochs(count, **changes):
    return Part({"stop__max_epochs": count, **changes})


def validated(every, **changes):
    return Part({"stop__validate_every_steps": every, **changes})


# 22 training samples: an epoch has 3 steps of 8, and the loss swings at this learning rate. A batch that grows has 3, 2 and 1.
SWINGS = {"optim__learning_rate": 0.02, "stop__max_epochs": 4}
INSIDE = SWINGS | {"stop__validate_every_steps": 1}
GROWING = {
    "scaling": "growing",
    "parallel__simulate_devices": 8,
    "optim__batch_doubling_epochs": (2, 4),
    "stop__max_epochs": 7,
    "checkpoint__every_epochs": 1,
}
LOCAL = {"scaling": "local", "parallel__simulate_devices": 4, "optim__local_steps": 2, "stop__max_epochs": 4}
EXACT_ON_TWO = EXACT | {"optim__batch_size": 10, "parallel__devices": 2}
KINDS = {
    "two devices": {"parallel__devices": 2, "optim__batch_size": 5, "data__augment": True},
    "growing, micro-batches": {
        "scaling": "growing",
        "optim__batch_doubling_epochs": (1, 2),
        "stop__max_epochs": 4,
        "parallel__micro_batch_size": 2,
    },
    "exact on two devices, float64": EXACT_ON_TWO | {"precision": "float64"},
}
QUICK = {
    "a batch that grows, ended after epoch 2": Case(GROWING, (epochs(2), Part())),
    "local steps, ended after epoch 2": Case(LOCAL, (epochs(2), Part())),
    "local steps, validations inside": Case(LOCAL, (validated(2),)),
    "validations inside": Case(SWINGS, (validated(1),)),
    "validations inside, interrupted": Case(INSIDE, (Part({}, 1), Part())),
    "validations after steps two and three": Case(INSIDE, (validated(2),)),
    "validations after more steps than there are": Case(INSIDE, (validated(50),)),
    "other validations in each part": Case(
        SWINGS,
        (epochs(1), validated(2, stop__max_epochs=2), validated(1, stop__max_epochs=3), validated(None)),
    ),
    "a source in chunks of three steps and of one": Case(
        {"parallel__prefetch_mb": 0.02875, "data__augment": True, "optim__batch_size": 6}, source=True
    ),
}
SLOW = {
    **{
        f"{name}, ended after epoch 2": Case(
            {"optim__name": name, "optim__learning_rate": RATES[name], "stop__max_epochs": 4},
            (epochs(2), Part()),
        )
        for name in ("momentum", "lamb")
    },
    "a batch that grows, killed after a change": Case(GROWING | {"checkpoint__every_epochs": 3}, (Part({}, 5, fail), Part())),
    "validations inside, killed": Case(INSIDE, (Part({}, 3, fail), Part())),
    **{f"validations after every step, {name}": Case(of, (validated(1),)) for name, of in KINDS.items()},
    "validations after two steps of eleven": Case({"optim__batch_size": 2, "stop__max_epochs": 2}, (validated(2),)),
    **{f"a source, {name}": Case(of, source=True) for name, of in KINDS.items()},
    "a source, local steps in chunks of two": Case(LOCAL | {"parallel__prefetch_mb": 0.02875}, source=True),
    "a source, one step": Case({"optim__batch_size": 22}, source=True),
    "a source, validations inside": Case(SWINGS, (validated(2),), source=True),
    "a source, several validation steps": Case({"data__samples": 400, "data__validation": 300}, source=True),
    "a source, exact on four devices": Case(EXACT_ON_TWO, (Part({"parallel__devices": 4}),), source=True),
    "a source, then other memory and threads": Case(
        {"stop__max_epochs": 5}, (epochs(2, parallel__prefetch_mb=0.001, parallel__fetch_threads=1), Part()), source=True
    ),
}


def untimed(rows, steps):
    """The rows at some steps, without what depends on the clock."""
    return [
        tuple(repr(value) for key, value in row._asdict().items() if key[-2:] != "_s") for row in rows if row.steps in steps
    ]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=marks)
        for cases, marks in ((QUICK, ()), (SLOW, pytest.mark.slow))
        for name, case in cases.items()
    ],
)
def test_a_run_in_parts_has_the_bits_of_one_throughout(tmp_path, whole, case):
    expected, workdir = whole(**CHEAP | case.of), tmp_path / "run"
    config = expected.config
    for part in case.parts:
        config = small(**CHEAP | case.of | part.changes)
        saved = max(checkpoint_epochs(workdir), default=0) if workdir.exists() else 0
        display = Recorder(part.at, part.end)
        with pytest.raises(MemoryError) if part.end is fail else nullcontext():
            loop.run(from_source(tmp_path / "volumes.py", config) if case.source else config, workdir, display)
        assert display.rows[0].epoch == saved + 1, "only what no checkpoint had is repeated"
    rows, of_whole = (read_history(folder / "history.csv") for folder in (workdir, expected.workdir))
    both = {row.steps for row in rows} & {row.steps for row in of_whole}
    assert both >= {row.steps for row in epoch_ends(of_whole)}
    assert untimed(rows, both) == untimed(of_whole, both)
    assert fingerprint(config, workdir) == fingerprint(expected.config, expected.workdir)
