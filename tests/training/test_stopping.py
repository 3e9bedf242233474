import math
from typing import Any

import pytest

from gmmae.config.schema import StopConfig
from gmmae.system import stop_reasons
from gmmae.training.records import Epoch
from gmmae.training.stopping import StopMonitor

GOES_ON: dict[str, Any] = {
    "train_loss": 0.5,
    "val_losses": [0.3, 0.2],
    "total_s": 10.0,
    "target": 0.1,
    "max_epochs": 9,
    "time_limit_s": 60.0,
    "collapse_epochs": 1,
}


def reason(changes: dict[str, Any]) -> str | None:
    rules = GOES_ON | changes
    losses, train_loss, total_s = (rules.pop(key) for key in ("val_losses", "train_loss", "total_s"))
    monitor = StopMonitor(StopConfig(**rules))
    for epoch, loss in enumerate(losses, 1):
        monitor.add(Epoch(epoch, epoch, epoch, 0.1, train_loss, loss, 0, 0, 0, 0, total_s, 32))
    return monitor.reason()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"target": 0.2}, "target_reached"),  # at the target
        ({"target": 0.21}, "target_reached"),
        ({"target": 0.199}, None),
        ({"target": 0.3, "val_losses": [0.3, 0.31]}, "target_reached"),  # raised after the first epoch
        ({"target": None, "val_losses": [0.1, 0.0]}, None),  # switched off
        ({"max_epochs": 2}, "max_epochs"),
        ({"max_epochs": 1}, "max_epochs"),  # lowered on a resume
        ({"total_s": 60.0}, "time_limit"),
        ({"total_s": 59.9}, None),
        ({"total_s": 1e9, "time_limit_s": None}, None),
        ({"val_losses": [0.2, 0.2]}, "collapsed"),
        ({"val_losses": [0.2, 0.2 + 1e-12]}, None),
        ({"val_losses": [0.2, 0.2], "collapse_epochs": None}, None),
        ({"val_losses": [0.2, 0.21, 0.22], "patience_epochs": 2}, "stalled"),
        ({"val_losses": [0.2, 0.21, 0.2], "patience_epochs": 2}, "stalled"),  # an equal value is no improvement
        ({"val_losses": [0.2, 0.21, 0.199], "patience_epochs": 2}, "stalled"),  # half a per cent
        ({"val_losses": [0.2, 0.21, 0.199], "patience_epochs": 2, "min_relative_improvement": 0.001}, None),
        ({"val_losses": [0.2, 0.21, 0.19], "patience_epochs": 2}, None),
        ({"val_losses": [0.2, 0.19, 0.2], "patience_epochs": 2}, None),  # the best is one epoch old
        ({"val_losses": [0.2, 0.21], "patience_epochs": 2}, None),  # one further epoch, not two
        ({"val_losses": [0.3, 0.2, 0.2], "collapse_epochs": 2}, None),
        ({"val_losses": [0.3, 0.2, 0.2, 0.2], "collapse_epochs": 2}, "collapsed"),
        ({"val_losses": [0.2, 0.2], "collapse_epochs": 2}, None),  # one further epoch, not two
        ({"val_losses": [0.2, 0.3, 0.2], "collapse_epochs": 2}, None),
        # A target that an earlier epoch had reached comes first: it was raised since.
        ({"val_losses": [0.2, 0.3], "target": 0.2, "max_epochs": 2}, "target_reached"),
        ({"val_losses": [0.2, 0.3], "target": 0.2, "train_loss": math.nan}, "target_reached"),
        # The result comes before the limits.
        ({"val_losses": [0.2, 0.2], "target": 0.2, "max_epochs": 2, "total_s": 60.0}, "target_reached"),
        ({"val_losses": [0.2, 0.2], "max_epochs": 2, "total_s": 60.0}, "collapsed"),
        ({"val_losses": [0.2, 0.2], "max_epochs": 2, "total_s": 60.0, "collapse_epochs": None}, "max_epochs"),
    ],
)
def test_reasons_one_at_a_time(changes, expected):
    assert reason(changes) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["training", "validation"])
def test_nan_or_infinity_in_any_loss_diverges_whatever_else_holds(value, where):
    changes = {"training": {"train_loss": value}, "validation": {"val_losses": [0.3, value]}}[where]
    assert reason({"target": 0.25, "max_epochs": 2, "total_s": 60.0} | changes) == "diverged"


def stops(metrics: list[float]) -> str | None:
    """The reason after epochs whose watched metric has these values; two epochs of patience."""
    monitor = StopMonitor(StopConfig(monitor="dice", mode="max", target=0.99, max_epochs=9, patience_epochs=2))
    for epoch, dice in enumerate(metrics, 1):
        monitor.add(Epoch(epoch, epoch, epoch, 0.1, 0.5, 0.5 / epoch, 0, 0, 0, 0, 0, 32, metrics={"dice": dice}))
    return monitor.reason()


@pytest.mark.parametrize("undefined", [[], [math.nan], [math.nan, math.nan]])
def test_patience_ends_as_without_epochs_whose_metric_is_undefined(undefined):
    assert stops([math.nan] * 3) == stops([0.5, math.nan, math.nan]) == "stalled"
    assert stops([*undefined, 0.5]) is None
    assert stops([*undefined, 0.5, 0.5]) is None
    assert stops([*undefined, 0.5, 0.5, 0.5]) == stops([*undefined, 0.5, math.nan, 0.5]) == "stalled"
    assert stops([*undefined, 0.5, 0.5, 0.6]) is None


def test_every_reason_has_its_exit_code():
    expected = {
        0: {"target_reached", "max_epochs", "time_limit", "stalled"},
        3: {"diverged", "collapsed"},
        143: {"sigterm"},
        130: {"sigint"},
        129: {"sighup"},
    }
    found = {code: {reason for reason, its in stop_reasons.EXIT_CODES.items() if its == code} for code in expected}
    assert found == expected
    assert set(stop_reasons.INTERRUPTED) < set(stop_reasons.EXIT_CODES)
