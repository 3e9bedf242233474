"""When training stops, and why, as the record says it."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from gmmae.config.schema import LOSS, StopConfig
from gmmae.system.stop_reasons import COLLAPSED, DIVERGED, INTERRUPTED, MAX_EPOCHS, STALLED, TARGET_REACHED, TIME_LIMIT
from gmmae.training.records import Epoch, Record

MIN_HALF = 5
"""Epochs of half of those after the best. Fewer may be worse by chance."""

ROUNDINGS = 1e-6
"""Relative error of a mean in float32, where 27 of 30 may be 0.89999998: then a target of 0.9 is reached."""


class StopMonitor:
    """The rows of a run's history, and the reason to stop after the last epoch.

    Attributes:
      epochs: the rows at the ends of epochs.
      at_target: the first row at the target.
      costs: the monitored metric by epoch, negated where higher is better; infinite before the first.

    >>> rows = [Epoch(epoch, epoch, epoch, 0.1, loss, loss, 0, 0, 0, 0, 0, 32) for epoch, loss in enumerate((0.3, 0.2), 1)]
    >>> StopMonitor(StopConfig(target=0.2), rows).reason()
    'target_reached'
    """

    def __init__(self, stop: StopConfig, rows: Iterable[Epoch] = ()):
        self._stop, self._sign = stop, stop.cost(1.0)
        self.time_limit_s = math.inf if stop.time_limit_s is None else stop.time_limit_s
        self._target = math.nan if stop.target is None else stop.cost(stop.target)  # nothing is at it, not even ∞
        self.rows: list[Epoch] = []
        self.epochs: list[Epoch] = []
        self.at_target: Epoch | None = None
        self.costs, self._costs_of_rows = [math.inf], list[float]()
        self._lowest = [math.inf]  # cost up to each epoch, so that no rule walks through all of them
        for row in rows:
            self.add(row)

    def add(self, row: Epoch) -> None:
        """Adds the next row; an undefined metric, or one beside a loss that is not finite, is worse than any other."""
        monitor = self._stop.monitor
        cost = self._sign * (row.val_loss if monitor == LOSS else row.metrics.get(monitor, math.nan))
        cost = cost if math.isfinite(row.val_loss) and not math.isnan(cost) else math.inf
        self.rows.append(row)
        self._costs_of_rows.append(self._target if math.isclose(cost, self._target, rel_tol=ROUNDINGS) else cost)
        if self.at_target is None and self._costs_of_rows[-1] <= self._target:
            self.at_target = row
        if row.train_loss is not None:
            self.epochs.append(row)
            self.costs.append(cost)
            self._lowest.append(min(self._lowest[-1], cost))

    def target_epoch(self) -> Epoch | None:
        """The end of the epoch of the first row at the target."""
        return self.epochs[self.at_target.epoch - 1] if self.at_target else None

    def target_step(self) -> float | None:
        """The step at which the metric crosses the target, linear between two rows."""
        if self.at_target is None:
            return None
        return crossing([0, *(row.steps for row in self.rows)], [math.inf, *self._costs_of_rows], self._target)

    def reason(self) -> str | None:  # noqa: PLR0911 a line for each reason
        """The reason to stop after the last epoch, or None to go on, as always inside an epoch.

        A target reached inside the last epoch, or earlier where it was changed since, goes before NaN or infinity in a loss,
        and that before any other rule. `collapsed` is a validation loss of the same digits for `collapse_epochs` further
        epochs: the constant ceiling of the paper's Fig. 3. `stalled` is any other plateau: the best of the last
        `patience_epochs` does not improve on the best before by the share `min_relative_improvement`.
        """
        stop, done, last = self._stop, len(self.epochs), self.rows[-1] if self.rows else None
        if last is None or last.train_loss is None:
            return None
        if self.at_target and self.at_target.steps < last.steps:
            return TARGET_REACHED
        if not (math.isfinite(last.train_loss) and math.isfinite(last.val_loss)):
            return DIVERGED
        if self.at_target:
            return TARGET_REACHED
        same, patience = stop.collapse_epochs, stop.patience_epochs
        if same and same < done and len({row.val_loss for row in self.epochs[-same - 1 :]}) == 1:
            return COLLAPSED
        if patience and patience < done:
            before = self._lowest[-patience - 1]
            gain = stop.min_relative_improvement * abs(before) if math.isfinite(before) else 0.0
            if min(self.costs[-patience:]) >= before - gain:
                return STALLED
        if done >= stop.max_epochs:
            return MAX_EPOCHS
        return TIME_LIMIT if self.time_limit_s <= last.total_s else None

    def overfitted_from(self) -> int | None:
        """The epoch after the best one, if more than a third of all follow that and only the training loss went on falling.

        From the first to the second half of these epochs the metric gets worse by a hundredth of its best value.
        """
        best = self.costs.index(min(self.costs))
        costs, train = self.costs[best + 1 :], [row.train_loss or 0.0 for row in self.epochs[best:]]
        half = len(costs) // 2
        if half < MIN_HALF or 2 * len(costs) <= best:
            return None
        worse = fmean(costs[half:]) - fmean(costs[:half]) > 0.01 * abs(self.costs[best])
        return best + 1 if worse and fmean(train[half:]) < fmean(train[:half]) else None


def crossing(steps: Sequence[float], costs: Sequence[float], level: float) -> float:
    """The step at which a curve first falls to a level, linear between two validations, or infinity.

    >>> crossing((0, 10, 20), (5.0, 3.0, 2.0), 2.5), crossing((0, 10), (5.0, 3.0), 1.0)
    (15.0, inf)
    """
    below = [place for place, cost in enumerate(costs) if cost <= level]
    if not below:
        return math.inf
    after = below[0]
    if after == 0:
        return float(steps[0])
    drop = costs[after - 1] - costs[after]
    share = (costs[after - 1] - level) / drop if math.isfinite(drop) else 1.0
    return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def until_stop(rows: Iterable[Epoch], stop: StopConfig) -> tuple[list[Epoch], str | None]:
    """The rows of a run up to the epoch at which it stops under these rules, and the reason, or None if it goes on."""
    monitor = StopMonitor(stop)
    for row in rows:
        monitor.add(row)
        if monitor.reason():
            break
    return monitor.rows, monitor.reason()


def finished(record: Record, stop: StopConfig, rows: Callable[[], Iterable[Epoch]] = list) -> bool:
    """Whether a run has nothing left to do under these rules, which may have changed since.

    Without the rows of its history only the limits of epochs and time are applied again.
    """
    reason = record.stop_reason
    goal = stop.target, stop.monitor, stop.better
    if reason in (None, *INTERRUPTED) or (record.target, record.monitor, record.mode) != goal:
        return False
    monitor = StopMonitor(stop, rows())
    if record.epochs and len(monitor.epochs) == record.epochs:
        return monitor.reason() == reason
    if reason == MAX_EPOCHS:
        return record.epochs >= stop.max_epochs
    return reason != TIME_LIMIT or monitor.time_limit_s <= record.clocks.get("total_s", 0.0)
