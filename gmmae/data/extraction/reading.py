"""All scans of a plan, read: those that an interrupted extraction has read before are not read again."""

from contextlib import closing
from pathlib import Path

from gmmae.data.extraction import scan_cache
from gmmae.data.extraction.annotations import refuse
from gmmae.data.extraction.extract import Options
from gmmae.data.extraction.extracted import Reading
from gmmae.data.extraction.processes import cores
from gmmae.data.extraction.progress import Progress, Say
from gmmae.data.extraction.retry import read_all
from gmmae.data.extraction.tasks import Plan, Task
from gmmae.data.settings import DataConfig


def read(config: DataConfig, plan: Plan, version: int, kept: Path, say: Say) -> list[Reading]:
    """What came of every scan of a plan.

    Args:
      config: how cubes are cut, by how many processes, and what happens to broken scans.
      plan: the scans.
      version: of what a scan gives.
      kept: the folder of parts.
      say: takes lines for the user.

    Raises:
      DataError: a scan is broken and `data.on_error` is "refuse".
      TransientError: as `retries.read_all`.
    """
    options = _options(config)
    places = {task: _part(kept, version, task, options) for task in plan.tasks}
    before = {task: result for task, place in places.items() if (result := scan_cache.load(place, task)) is not None}
    readings = [Reading(task, result, ()) for task, result in before.items()]
    left = [task for task in plan.tasks if task not in before]
    if before:
        say(f"{len(before)} of {len(plan.tasks)} scans were read before, {len(left)} are left")
    # A process of its own is what can be killed. Without a limit, one worker may as well be this process.
    workers = 0 if config.workers == 1 and not config.scan_time_limit_s else config.workers or cores()
    with (
        Progress(len(left), "scans", say) as progress,
        closing(read_all(left, options, workers, config.scan_time_limit_s, say)) as results,
    ):
        for reading in results:
            if config.on_error == "refuse":
                refuse(reading.result.faults, plan.way_out)
            scan_cache.save(places[reading.task], reading.task, reading.result)
            readings.append(reading)
            progress.advance()
    return readings


def forget(config: DataConfig, plan: Plan, version: int, kept: Path) -> None:
    """Remove the parts of a plan."""
    scan_cache.remove(kept, [_part(kept, version, task, _options(config)).stem for task in plan.tasks])


def _options(config: DataConfig) -> Options:
    return Options(config.volume_shape, config.least_axes, config.crop, config.outside, config.hu)


def _part(kept: Path, version: int, task: Task, options: Options) -> Path:
    return kept / f"{scan_cache.name(version, task, options)}.npz"
