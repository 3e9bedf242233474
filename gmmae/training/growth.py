"""The stages of a run whose global batch grows between epochs, and the epochs at which they begin."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from gmmae.training import compilation
from gmmae.training.compilation import TrainSetup

CRITICAL_RATIO = 3.0
"""The critical batch relative to the noise scale. `gmmae.planner.steps` expects the same ratio of Bn."""

EPOCHS_BETWEEN_MEASUREMENTS = 2


class Growth:
    """The stages of a run.

    Args:
      setup: of the run.
      starts: first epochs of later stages, as a checkpoint has them. They matter where measurements decide.

    Attributes:
      starts: first epochs of the stages after the first one, as far as they are known.
      measured: whether measurements in the run decide.
    """

    def __init__(self, setup: TrainSetup, starts: Sequence[int]) -> None:
        given = setup.strategy.first_epochs
        self._stages = compilation.stages(setup)
        self._max_epochs = setup.config.stop.max_epochs
        self.measured = given is None
        self.starts = list(starts if given is None else given)

    def stage(self, epoch: int) -> int:
        """Returns the number of an epoch's stage, from 0."""
        return bisect_right(self.starts, epoch)

    def setup(self, epoch: int) -> TrainSetup:
        """Returns the setup of an epoch's stage."""
        return self._stages[self.stage(epoch)]

    def from_epoch(self, epoch: int) -> Iterator[tuple[int, TrainSetup]]:
        """Yields the stages that an epoch and those after it may have, with their numbers."""
        last = len(self._stages) if self.measured else self.stage(self._max_epochs) + 1
        return ((number, self._stages[number]) for number in range(self.stage(epoch), last))

    def due(self, done: int) -> bool:
        """Returns whether the critical batch is to be measured after an epoch."""
        return self._undecided and done % EPOCHS_BETWEEN_MEASUREMENTS == 0

    def is_exceeded(self, noise_scale: float) -> bool:
        """Returns whether the critical batch is at least the next stage's batch."""
        return CRITICAL_RATIO * noise_scale >= self._stages[len(self.starts) + 1].train_plan.batch

    def batches(self, done: int) -> list[list[int]]:
        """Returns the first epoch and the global batch of each later stage that has begun."""
        return [[start, self._stages[i].train_plan.batch] for i, start in enumerate(self.starts, start=1) if start <= done]

    @property
    def _undecided(self) -> bool:
        return self.measured and len(self.starts) < len(self._stages) - 1
