"""When training stops, and why. Reasons are results: they go into the record as they are."""

import math
from collections.abc import Sequence

from gmmae.config.schema import StopConfig
from gmmae.system.stop_reasons import COLLAPSED, DIVERGED, INTERRUPTED, MAX_EPOCHS, STALLED, TARGET_REACHED, TIME_LIMIT
from gmmae.training.records import Epoch


def finished(reason: str | None, epochs: int, total_s: float, *, max_epochs: int, time_limit_s: float) -> bool:
    """Whether a run that stopped for this reason has nothing left to do under these limits, which may have been raised since.

    The other rules are taken to be those that the run had.

    >>> [finished("max_epochs", 10, 5.0, max_epochs=limit, time_limit_s=0) for limit in (10, 20)]
    [True, False]
    """
    if reason == MAX_EPOCHS:
        return epochs >= max_epochs
    if reason == TIME_LIMIT:
        return 0 < time_limit_s <= total_s
    return reason is not None and reason not in INTERRUPTED


def stop_reason(
    step_losses: Sequence[float],
    val_losses: Sequence[float],
    costs: Sequence[float],
    lowest: Sequence[float],
    total_s: float,
    *,
    target: float | None = None,
    max_epochs: int,
    time_limit_s: float = 0.0,
    collapse_epochs: int = 0,
    patience_epochs: int = 0,
    patience_gain: float = 0.01,
) -> str | None:
    """Why to stop after the epoch just done, or None to go on.

    A target that an epoch before this one has reached, because it was changed since, comes first. NaN or infinity in a loss is
    `diverged`, whatever else holds. `collapsed` is a validation loss that is the same, to the last digit, after
    `collapse_epochs` further epochs: the constant ceiling of the paper's Fig. 3. `stalled` is a plateau that is not constant:
    the best of the last `patience_epochs` epochs is not better than the best before by the share `patience_gain`.

    Args:
      step_losses: training losses of the last epoch's steps.
      val_losses: validation losses of all epochs so far.
      costs: the metric that is watched, after the same epochs, as something to make small.
      lowest: the lowest cost up to each epoch, so that no rule walks through all epochs.
      total_s: seconds since the beginning of the run.
      target: of the cost; None for no target.
      time_limit_s, collapse_epochs, patience_epochs: 0 switches the rule off.
      max_epochs: epochs to train at most.
      patience_gain: a share of the cost, 0 to 1.

    >>> stop_reason([0.1], [0.3, 0.2], [0.3, 0.2], [0.3, 0.2], 1.0, target=0.2, max_epochs=9)
    'target_reached'
    """
    if target is not None and min(lowest[-2:-1], default=math.inf) <= target:
        return TARGET_REACHED
    if not all(math.isfinite(loss) for loss in (*step_losses, val_losses[-1])):
        return DIVERGED
    if target is not None and costs[-1] <= target:
        return TARGET_REACHED
    if collapse_epochs and len(val_losses) > collapse_epochs and len(set(val_losses[-collapse_epochs - 1 :])) == 1:
        return COLLAPSED
    if patience_epochs and len(costs) > patience_epochs:
        before = lowest[-patience_epochs - 1]
        gain = patience_gain * abs(before) if math.isfinite(before) else 0.0
        if min(costs[-patience_epochs:]) >= before - gain:
            return STALLED
    if len(val_losses) >= max_epochs:
        return MAX_EPOCHS
    if time_limit_s and total_s >= time_limit_s:
        return TIME_LIMIT
    return None


class Course:
    """The epochs of a run as the rules see them."""

    def __init__(self, stop: StopConfig):
        self._stop = stop
        self.rows: list[Epoch] = []
        self._val_losses: list[float] = []
        self._costs: list[float] = []
        self._lowest: list[float] = []

    def add(self, row: Epoch) -> None:
        """Takes note of the next epoch."""
        self.rows.append(row)
        self._val_losses.append(row.val_loss)
        cost = self._stop.cost(row.value(self._stop.metric))
        self._costs.append(math.inf if math.isnan(cost) else cost)  # an undefined metric is worse than any other
        self._lowest.append(min([*self._lowest[-1:], self._costs[-1]]))

    def cost(self, epoch: int) -> float:
        """The watched metric after an epoch, from 1, as something to make small; infinite for epoch 0."""
        return self._costs[epoch - 1] if epoch else math.inf

    def at_target(self) -> Epoch | None:
        """The first epoch that has reached the target."""
        target = self._stop.cost(self._stop.target)
        return next((row for row, cost in zip(self.rows, self._costs, strict=True) if cost <= target), None)

    def stop_reason(self, step_losses: Sequence[float], total_s: float) -> str | None:
        """`stop_reason` by the run's rules; None before the first epoch."""
        if not self.rows:
            return None
        rules = {name: getattr(self._stop, name) for name in RULES}
        target = self._stop.cost(self._stop.target) if self._stop.target else None
        return stop_reason(step_losses, self._val_losses, self._costs, self._lowest, total_s, target=target, **rules)


RULES = ("max_epochs", "time_limit_s", "collapse_epochs", "patience_epochs", "patience_gain")


def epochs_in_time(epoch_s: float | None, total_s: float, time_limit_s: float) -> int:
    """Epochs after which at most one more passes the time limit; 1 where the seconds that an epoch takes are not known.

    >>> [epochs_in_time(epoch_s, 5.0, 10.0) for epoch_s in (None, 2.0, 30.0)]
    [1, 2, 1]
    """
    return max(1, int((time_limit_s - total_s) / epoch_s)) if epoch_s else 1
