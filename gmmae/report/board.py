"""All cells of a sweep side by side in TensorBoard: a run for each, made anew from records and histories at each report."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from gmmae.base.records import Epoch
from gmmae.report.folders import rebuilt
from gmmae.report.results import Results, Run
from gmmae.training.writers import RESULTS, TIMES, TensorBoard, training_s

PROJECTED_TIMES = {"time/projected_s": "total_s"}
PROJECTED_RESULTS = {"result/projected_time_to_target_s": "time_to_target_s"} | {
    tag: name for tag, name in RESULTS.items() if name != "time_to_target_s"
}
NO_RESULT_TIMES = {tag: name for tag, name in RESULTS.items() if name != "time_to_target_s"}


def write(results: Results) -> Path | None:
    """Writes `tb/<arm>/n<NN>/seed<S>` for each run that has a history; returns `tb`, or None where there is none.

    Numbers of devices have leading zeros, because TensorBoard sorts by letters. Its axis "Relative" shows the time to a loss;
    where that is projected, the names of tags and runs say so.

    Raises:
      InputError: the folder cannot be written, or a history cannot be read.
    """
    found = [(run, history) for run in results.runs if (history := results.history(run))]
    if not found:
        return None
    digits = max(2, len(str(results.counts[-1])))
    with rebuilt(results.folder.tensorboard) as folder:
        for run, history in found:
            seed = f"seed{run.cell.seed}" + ("_projected" if results.clock.kind == "projected" else "")
            _write_run(results, run, history, folder / run.cell.arm / f"n{run.cell.devices:0{digits}}" / seed)
    return results.folder.tensorboard


def _write_run(results: Results, run: Run, history: list[Epoch], folder: Path) -> None:
    kind = results.clock.kind
    times = {"measured": TIMES, "projected": PROJECTED_TIMES, "unknown": {}}[kind]
    tags = {"measured": RESULTS, "projected": PROJECTED_RESULTS, "unknown": NO_RESULT_TIMES}[kind]
    clock = {"measured": training_s, "projected": attrgetter("total_s"), "unknown": None}[kind]
    board = TensorBoard(folder, _parameters(results, run), metric=run.record.metric, times=times, results=tags, clock=clock)
    for row in history:
        board.epoch(row._replace(total_s=results.elapsed_s(run, row)) if kind == "projected" else row)
    board.result(replace(run.record, time_to_target_s=run.time_s if run.reached else None))
    board.close()


def _parameters(results: Results, run: Run) -> dict[str, Any]:
    record = run.record
    return {
        "arm": run.cell.arm,
        "devices": run.cell.devices,
        "seed": run.cell.seed,
        "global_batch": record.global_batch,
        "device_batch": record.device_batch,
        "learning_rate": record.learning_rate,
        "mode": results.config.mode,
        "outcome": run.outcome,
    }
