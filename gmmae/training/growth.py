"""The stages of a run whose global batch grows between epochs, and the epochs at which they begin."""

from bisect import bisect_right
from collections.abc import Iterator

from gmmae.training import compilation
from gmmae.training.compilation import TrainSetup


class Growth:
    """The stages of a run.

    Args:
      setup: of the run.

    Attributes:
      starts: first epochs of the stages after the first one.
    """

    def __init__(self, setup: TrainSetup) -> None:
        self._stages = compilation.stages(setup)
        self._max_epochs = setup.config.stop.max_epochs
        self.starts = [stage.first_epoch for stage in setup.strategy.stages[1:]]

    def stage(self, epoch: int) -> int:
        """Returns the number of an epoch's stage, from 0."""
        return bisect_right(self.starts, epoch)

    def setup(self, epoch: int) -> TrainSetup:
        """Returns the setup of an epoch's stage."""
        return self._stages[self.stage(epoch)]

    def from_epoch(self, epoch: int) -> Iterator[tuple[int, TrainSetup]]:
        """Yields the stages of an epoch and of those after it, with their numbers."""
        last = self.stage(self._max_epochs) + 1
        return ((number, self._stages[number]) for number in range(self.stage(epoch), last))

    def batches(self, done: int) -> list[list[int]]:
        """Returns the first epoch and the global batch of each later stage that has begun."""
        return [[start, self._stages[i].train_plan.batch] for i, start in enumerate(self.starts, start=1) if start <= done]
