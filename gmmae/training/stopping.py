"""When training stops, and why. Reasons are results: they go into the record as they are."""

import math
from collections.abc import Iterable

from gmmae.config.schema import LOSS, StopConfig
from gmmae.system.stop_reasons import COLLAPSED, DIVERGED, INTERRUPTED, MAX_EPOCHS, STALLED, TARGET_REACHED, TIME_LIMIT
from gmmae.training.records import Epoch, Record
from gmmae.training.validations import Validation, at_end_of, crossing


class StopMonitor:
    """The epochs of a run, the validations inside them, and the reason to stop after the last epoch.

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
        self.inside: list[Validation] = []  # the validations inside these epochs, and inside the next one
        self.at_target: Validation | None = None  # the first one at the target
        self._curve: list[tuple[int, float]] = []  # the step of each validation, and the metric as something to make small
        self._costs: list[float] = []  # the monitored metric after each epoch, as something to make small
        self._lowest: list[float] = []  # the lowest cost up to each epoch, so that no rule walks through all of them

    def add(self, row: Epoch) -> None:
        """Adds the next epoch, after the validations inside it."""
        self.rows.append(row)
        self._costs.append(self._validate(at_end_of(row)))
        self._lowest.append(min([*self._lowest[-1:], self._costs[-1]]))

    def add_inside(self, validation: Validation) -> None:
        """Adds a validation inside the next epoch."""
        self.inside.append(validation)
        self._validate(validation)

    def add_all(self, rows: Iterable[Epoch], inside: Iterable[Validation]) -> None:
        """Adds epochs and the validations inside them. Validations of other epochs, and at the ends of these, are left out."""
        of_epoch: dict[int, list[Validation]] = {}
        for validation in inside:
            of_epoch.setdefault(validation.epoch, []).append(validation)
        for row in rows:
            for validation in of_epoch.get(row.epoch, []):
                if validation.step < row.steps:
                    self.add_inside(validation)
            self.add(row)

    def _validate(self, validation: Validation) -> float:
        """Returns the metric of the next validation as something to make small, and notes whether it is at the target."""
        cost = self._stop.cost(validation.value(self._stop.monitor))
        cost = math.inf if math.isnan(cost) else cost  # an undefined metric is worse than any other
        finite = math.isfinite(validation.value(LOSS))
        if self.at_target is None and finite and cost <= self._target:
            self.at_target = validation
        self._curve.append((validation.step, cost if finite else math.inf))
        return cost

    def cost(self, epoch: int) -> float:
        """Returns the monitored metric after an epoch, from 1, as something to make small; infinity for epoch 0."""
        return self._costs[epoch - 1] if epoch else math.inf

    def target_epoch(self) -> Epoch | None:
        """Returns the epoch of the first validation at the target."""
        return self.rows[self.at_target.epoch - 1] if self.at_target else None

    def target_step(self) -> float | None:
        """Returns the step at which the metric crosses the target, linear between two validations; None if it does not."""
        steps, costs = zip((0, math.inf), *self._curve, strict=True)
        return crossing(steps, costs, self._target) if self.at_target else None

    def reason(self) -> str | None:
        """Returns the reason to stop after the last epoch, or None to go on.

        A target that an earlier epoch reached comes first, because it was changed since. So does one that was reached inside
        the last epoch. NaN or infinity in a loss is `diverged`, before any other rule. A validation loss that stays the same,
        to the last digit, for `collapse_epochs` further epochs is `collapsed`: the constant ceiling of the paper's Fig. 3. A
        plateau that is not constant is `stalled`. There the best of the last `patience_epochs` epochs does not improve on the
        best before by the share `min_relative_improvement`.
        """
        rows = self.rows
        if not rows:
            return None
        if self.at_target and self.at_target.step < rows[-1].steps:
            return TARGET_REACHED
        if not (math.isfinite(rows[-1].train_loss) and math.isfinite(rows[-1].val_loss)):
            return DIVERGED
        if self.at_target:
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


def finished(record: Record, stop: StopConfig, history: list[Epoch] | None = None, inside: Iterable[Validation] = ()) -> bool:
    """Returns whether a run has nothing left to do under these rules.

    Args:
      record: of the run.
      stop: the rules, which may have changed since.
      history: of the run; all rules are applied to it again. Without it only the limits of epochs and time are.
      inside: the validations of the run inside its epochs.
    """
    reason = record.stop_reason
    goal = stop.target, stop.monitor, stop.better
    if reason is None or reason in INTERRUPTED or (record.target, record.monitor, record.mode) != goal:
        return False
    if record.epochs and history and len(history) == record.epochs:
        monitor = StopMonitor(stop)
        monitor.add_all(history, inside)
        return monitor.reason() == reason
    if reason == MAX_EPOCHS:
        return record.epochs >= stop.max_epochs
    return reason != TIME_LIMIT or _time_is_over(stop, record.clocks.get("total_s", 0.0))
