"""The files of a report for programs: `runs.csv` and `cells.csv`."""

import math
from collections.abc import Sequence
from dataclasses import asdict

from gmmae.data.grouped import Estimate
from gmmae.sweep.grid import run_keys
from gmmae.sweep.report.cells import Cell, Results
from gmmae.system.files import csv_text

RUNS_COLUMNS = {
    "scaling": "the scaling strategy",
    "devices": "number of devices",
    "seed": "random seed",
    "mode": "mode of the sweep",
    "outcome": "why the run ended, or how its process failed",
    "epochs": "epochs of the run",
    "wanted_batch": "global batch that the strategy asks for",
    "global_batch": "global batch at the start of the run",
    "growth": "first epoch and global batch of each later stage: `6:64 11:128`",
    "device_batch": "samples of one device in a step",
    "learning_rate": "learning rate after any warmup, before any decay",
    "final_train_loss": "training loss of the last epoch",
    "final_val_loss": "validation loss after the last epoch",
    "best_val_loss": "validation loss after the best epoch",
    "best_epoch": "the best epoch by the monitored metric",
    "best_NAME": "a metric of the workload after that epoch, one column each",
    "target_step": "step at which the metric crosses the target, linear between two validations",
    "time_to_target_s": "seconds of training and validation to the target",
    "projected": "whether that time is projected to a cluster",
    "path": "the optimisation path; runs that share it were computed once",
    "steps": "training steps of the run",
    "train_s": "seconds of training on the machine that computed the run",
    "eval_s": "seconds of validation there",
    "machine": "that machine",
    "git_commit": "commit of the code",
}
"""The columns of `report/runs.csv` with their meanings."""


def runs_csv(results: Results) -> str:
    """A row for each computed run and each failed process. A missing value is empty."""
    metrics = dict.fromkeys(f"best_{name}" for run in results.runs for name in run.record.best_metrics)
    names = [name for column in RUNS_COLUMNS for name in (metrics if column == "best_NAME" else [column])]
    rows = {}
    for run in (*results.failed, *results.runs):
        rows[run.key] = {"mode": results.config.mode, "outcome": run.outcome, "path": run.path, "projected": False}
    for run in results.runs:
        record, known = run.record, math.isfinite(run.time_s)
        rows[run.key] = {
            **asdict(record),
            **record.clocks,
            **{f"best_{name}": value for name, value in record.best_metrics.items()},
            **rows[run.key],
            "growth": " ".join(f"{first}:{batch}" for first, batch in record.growth),
            "steps": record.steps,
            "time_to_target_s": run.time_s if known else None,
            "projected": known and results.source.kind == "projected",
        }
    return csv_text((rows[key] | key._asdict() for key in run_keys(results.config) if key in rows), names)


def cells_csv(by_cluster: Sequence[Results]) -> str:
    """The numbers of each cell, for each cluster. A missing value is empty, and a missed target infinite."""
    rows: list[dict[str, object]] = []
    for results in by_cluster:
        for cell in results.cells.values():
            rows.append({"cluster": results.source.cluster})
            for name, value in zip(Cell._fields[:-2], cell, strict=False):
                parts = dict(zip(("median", "low", "high"), value, strict=True)) if isinstance(value, Estimate) else {"": value}
                rows[-1] |= {f"{name}_{part}".strip("_"): "" if one != one else one for part, one in parts.items()}
    return csv_text(rows, rows[0] if rows else ())
