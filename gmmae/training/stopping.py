"""When training stops, and why. Reasons are results: they go into the record as they are."""

import math

from gmmae.config.schema import StopConfig
from gmmae.system.stop_reasons import COLLAPSED, DIVERGED, INTERRUPTED, MAX_EPOCHS, STALLED, TARGET_REACHED, TIME_LIMIT
from gmmae.training.records import Epoch, Record


class StopMonitor:
    """The epochs of a run, and the reason to stop after the last of them.

    >>> monitor = StopMonitor(StopConfig(target=0.2))
    >>> for epoch, loss in enumerate((0.3, 0.2), 1):
    ...     monitor.add(Epoch(epoch, epoch, epoch, 0.1, loss, loss, 0, 0, 0, 0, 0))
    >>> monitor.reason()
    'target_reached'
    """

    def __init__(self, stop: StopConfig):
        self._stop = stop
        self._target = -math.inf if stop.target is None else stop.cost(stop.target)
        self.rows: list[Epoch] = []
        self._costs: list[float] = []  # the monitored metric after each epoch, as something to make small
        self._lowest: list[float] = []  # the lowest cost up to each epoch, so that no rule walks through all of them

    def add(self, row: Epoch) -> None:
        """Adds the next epoch."""
        self.rows.append(row)
        cost = self._stop.cost(row.value(self._stop.monitor))
        self._costs.append(math.inf if math.isnan(cost) else cost)  # an undefined metric is worse than any other
        self._lowest.append(min([*self._lowest[-1:], self._costs[-1]]))

    def cost(self, epoch: int) -> float:
        """Returns the monitored metric after an epoch, from 1, as something to make small; infinity for epoch 0."""
        return self._costs[epoch - 1] if epoch else math.inf

    def at_target(self) -> Epoch | None:
        """Returns the first epoch that reached the target."""
        return next((row for row, cost in zip(self.rows, self._costs, strict=True) if cost <= self._target), None)

    def reason(self) -> str | None:
        """Returns the reason to stop after the last epoch, or None to go on.

        A target that an earlier epoch reached comes first, because it was changed since. NaN or infinity in a loss is
        `diverged`, before any other rule. A validation loss that stays the same, to the last digit, for `collapse_epochs`
        further epochs is `collapsed`: the constant ceiling of the paper's Fig. 3. A plateau that is not constant is `stalled`.
        There the best of the last `patience_epochs` epochs does not improve on the best before by the share
        `min_relative_improvement`.
        """
        rows = self.rows
        if not rows:
            return None
        if min(self._lowest[-2:-1], default=math.inf) <= self._target:
            return TARGET_REACHED
        if not (math.isfinite(rows[-1].train_loss) and math.isfinite(rows[-1].val_loss)):
            return DIVERGED
        if self._costs[-1] <= self._target:
            return TARGET_REACHED
        if self._collapsed():
            return COLLAPSED
        return STALLED if self._stalled() else self._limit()

    def _collapsed(self) -> bool:
        epochs = self._stop.collapse_epochs
        return epochs is not None and epochs < len(self.rows) and len({row.val_loss for row in self.rows[-epochs - 1 :]}) == 1

    def _stalled(self) -> bool:
        epochs = self._stop.patience_epochs
        if epochs is None or epochs >= len(self.rows):
            return False
        before = self._lowest[-epochs - 1]
        gain = self._stop.min_relative_improvement * abs(before) if math.isfinite(before) else 0.0
        return min(self._costs[-epochs:]) >= before - gain

    def _limit(self) -> str | None:
        if len(self.rows) >= self._stop.max_epochs:
            return MAX_EPOCHS
        return TIME_LIMIT if _time_is_over(self._stop, self.rows[-1].total_s) else None


def _time_is_over(stop: StopConfig, total_s: float) -> bool:
    return stop.time_limit_s is not None and stop.time_limit_s <= total_s


def finished(record: Record, stop: StopConfig, history: list[Epoch] | None = None) -> bool:
    """Returns whether a run has nothing left to do under these rules.

    Args:
      record: of the run.
      stop: the rules, which may have changed since.
      history: of the run; all rules are applied to it again. Without it only the limits of epochs and time are.
    """
    reason = record.stop_reason
    if reason is None or reason in INTERRUPTED:
        return False
    if record.epochs and history and len(history) == record.epochs:
        monitor = StopMonitor(stop)
        for row in history:
            monitor.add(row)
        return monitor.reason() == reason
    if reason == MAX_EPOCHS:
        return record.epochs >= stop.max_epochs
    return reason != TIME_LIMIT or _time_is_over(stop, record.clocks.get("total_s", 0.0))


def epochs_in_time(epoch_s: float | None, total_s: float, time_limit_s: float) -> int:
    """Returns the number of epochs after which at most one more passes the time limit; 1 where an epoch's seconds are unknown.

    >>> [epochs_in_time(epoch_s, 5.0, 10.0) for epoch_s in (None, 2.0, 30.0)]
    [1, 2, 1]
    """
    return max(1, int((time_limit_s - total_s) / epoch_s)) if epoch_s else 1
