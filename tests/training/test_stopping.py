import math
import re

import pytest

from gmmae.cli.verdict import verdict
from gmmae.config.schema import StopConfig
from gmmae.system import stop_reasons
from gmmae.training.preparation import RunCache
from gmmae.training.records import Epoch
from gmmae.training.run_logger import write_history
from gmmae.training.stopping import StopMonitor
from gmmae.training.workdir import WorkDir
from tests.small import small
from tests.sweep.test_runs import RECORD


def monitor(ends, inside=(), train_loss=0.5, total_s=10.0, **rules):
    """A monitor after epochs of 10 steps that end with these losses or Dice indices; `inside` has losses by step."""
    dice = rules.get("monitor") == "dice"
    rows = [(10 * epoch, train_loss, value) for epoch, value in enumerate(ends, 1)] + [
        (step, None, loss) for step, loss in inside
    ]
    return StopMonitor(
        StopConfig(**{"target": 0.1, "max_epochs": 9, "time_limit_s": 60.0, "collapse_epochs": 1} | rules),
        [
            Epoch(
                -(-step // 10), step, step, 0.1, train, 0.5 / step if dice else value, 0, 0, 0, 0, total_s, 32,
                metrics={"dice": value},
            )
            for step, train, value in sorted(rows)
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "rules", "expected"),
    [
        ([0.3, 0.10000000894069672], {}, "target_reached"),  # 3 of 30 in float32
        ([0.6, 0.8999999761581421], {"monitor": "dice", "mode": "max", "target": 0.9}, "target_reached"),
        ([0.3, 0.10001], {}, None),
        ([0.1, 0.0], {"target": None}, None),  # switched off
        ([math.inf, math.inf], {"target": None, "monitor": "dice", "mode": "max"}, None),
        ([0.3, 0.2], {"max_epochs": 1}, "max_epochs"),  # lowered on a resume
        ([0.3, 0.2], {"total_s": 60.0}, "time_limit"),
        ([0.3, 0.2], {"total_s": 59.9}, None),
        ([0.3, 0.2], {"total_s": 1e9, "time_limit_s": None}, None),
        ([0.2, 0.2 + 1e-12], {}, None),
        ([0.3, 0.2, 0.2, 0.2], {"collapse_epochs": 2}, "collapsed"),
        ([0.2, 0.2], {"collapse_epochs": 2}, None),  # one further epoch, not two
        ([0.2, 0.3, 0.2], {"collapse_epochs": 2}, None),
        ([0.2, 0.21, 0.2], {"patience_epochs": 2}, "stalled"),  # an equal value is no improvement
        ([0.2, 0.21, 0.199], {"patience_epochs": 2}, "stalled"),  # half a per cent
        ([0.2, 0.21, 0.199], {"patience_epochs": 2, "min_relative_improvement": 0.001}, None),
        ([0.2, 0.2, 0.2], {"patience_epochs": 2, "inside": [(15, 0.15), (25, 0.9)], "collapse_epochs": None}, "stalled"),
        # A target that an earlier epoch had reached comes first: it was raised since.
        ([0.2, 0.3], {"target": 0.2, "max_epochs": 2}, "target_reached"),
        ([0.2, 0.3], {"target": 0.2, "train_loss": math.nan}, "target_reached"),
        # The result comes before the limits.
        ([0.2, 0.2], {"target": 0.2, "max_epochs": 2, "total_s": 60.0}, "target_reached"),
        ([0.2, 0.2], {"max_epochs": 2, "total_s": 60.0}, "collapsed"),
        ([0.2, 0.2], {"max_epochs": 2, "total_s": 60.0, "collapse_epochs": None}, "max_epochs"),
    ],
)
def test_reasons_one_at_a_time(ends, rules, expected):
    assert monitor(ends, **rules).reason() == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_or_infinity_in_any_loss_diverges_whatever_else_holds(value):
    assert monitor([0.2, value]).costs == [math.inf, 0.2, math.inf]
    for ends, train_loss in (([0.3, 0.2], value), ([0.3, value], 0.5)):
        assert monitor(ends, train_loss=train_loss, target=0.25, max_epochs=2, total_s=60.0).reason() == "diverged"


@pytest.mark.parametrize("undefined", [[], [math.nan], [math.nan, math.nan]])
def test_patience_ends_as_without_epochs_whose_metric_is_undefined(undefined):
    def stops(*dice):
        return monitor(dice, monitor="dice", mode="max", target=0.99, patience_epochs=2).reason()

    assert stops(*[math.nan] * 3) == stops(0.5, math.nan, math.nan) == "stalled"
    assert stops(*undefined, 0.5) is None
    assert stops(*undefined, 0.5, 0.5) is None
    assert stops(*undefined, 0.5, 0.5, 0.5) == stops(*undefined, 0.5, math.nan, 0.5) == "stalled"
    assert stops(*undefined, 0.5, 0.5, 0.6) is None


@pytest.mark.parametrize(
    ("ends", "inside", "reason", "epoch", "step"),
    [
        ([5.0, 4.0], [(15, 1.0)], "target_reached", 2, 13.75),
        ([5.0, 4.0], [(15, 3.0)], None, None, None),
        ([5.0, 1.0], [(15, 3.0)], "target_reached", 2, 17.5),
        ([5.0, math.nan], [(15, 1.0)], "target_reached", 2, 13.75),  # it diverges after the target
        ([5.0, 4.0], [(15, math.nan), (18, 2.0)], "target_reached", 2, 18.0),
        ([5.0, 4.0], [(5, 2.0)], "target_reached", 1, 5.0),  # nothing is known before the first validation
    ],
)
def test_the_first_validation_at_the_target_counts(ends, inside, reason, epoch, step):
    found = monitor(ends, inside, target=2.0)
    assert found.reason() == reason
    assert getattr(found.target_epoch(), "epoch", None) == epoch
    assert found.target_step() == step


FALLS = [1 / epoch for epoch in range(1, 31)]
RISES = [0.5, *range(1, 30)]


@pytest.mark.parametrize(
    ("losses", "train", "words"),
    [
        (RISES, FALLS, [["from epoch 2 on", "--data.augment"]]),
        ([0.4, *[0.5] * 29], FALLS, []),
        (RISES, FALLS[::-1], []),
        (RISES[:10], FALLS[:10], []),  # nine epochs after the best
        ([0.5] * 19 + [0.4, *range(1, 11)], FALLS, []),  # a third of all
    ],
)
def test_overfitting_is_a_training_loss_that_falls_while_the_validation_gets_worse(tmp_path, losses, train, words):
    rows = [Epoch(e, e, e, 0.1, *both, 0, 0, 0, 0, 0, 32) for e, both in enumerate(zip(train, losses, strict=True), 1)]
    write_history(tmp_path / "history.csv", rows)
    lines = verdict(small(), RECORD, WorkDir(tmp_path), RunCache())
    assert [re.findall("from epoch .* on|--data.augment", line) for line in lines] == words


def test_every_reason_has_its_exit_code():
    expected = {
        0: {"target_reached", "max_epochs", "time_limit", "stalled"},
        3: {"diverged", "collapsed"},
        143: {"sigterm"},
        130: {"sigint"},
        129: {"sighup"},
    }
    assert {reason: code for code, reasons in expected.items() for reason in reasons} == stop_reasons.EXIT_CODES
