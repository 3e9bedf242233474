"""A plan, and the content of its `plan.json`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from gmmae.planner.answer import Source, answer, times_of
from gmmae.planner.measure import PlanMeasurements
from gmmae.planner.prediction import BatchRule, Forecast
from gmmae.sweep.report import models_an_hour
from gmmae.system.provenance import git_commit, versions

OTHERWISE_IN_JSON = ("optim", "train", "passes")
"""Fields of the measurements that `plan.json` holds under other names."""

CLUSTER_KEYS = {
    "answer": "the three lines of the answer",
    "cells": "the prediction for every strategy and number of devices",
    "best": "the recommended one of them",
    "best_batch": "batch of the strategy best-batch by number of devices",
    "best_batches": "best batches on 1, 2, 4, … devices, the values of `optim.best_batches`",
    "models_an_hour": "predicted models an hour by number of devices, way of running and strategy",
    "compute_scale": "seconds of computation on the cluster's device for one second measured",
    "scaled_by_user": "whether `--scale-compute` gave that factor",
    "times_of": "the device and the precision that the times are for",
}
"""The keys of one cluster in `plan.json` with their meanings."""

KEYS = {
    "config": "name of the configuration",
    "precision": "precision of the measured runs",
    "clusters": "the predictions by the name of the cluster",
    "rule": "the numbers that decide between dividing the batch and growing it",
    "target": "value of the metric to reach",
    "metric": "name of the metric",
    "curves": "loss curves of the measured runs",
    "measured": "the measurements, their cost, the versions and the commit",
}
"""The keys of `plan.json` with their meanings."""


class Plan(NamedTuple):
    """A plan: its configuration's name, its measurements, and the predictions for each cluster."""

    name: str
    measurements: PlanMeasurements
    rule: BatchRule
    forecasts: Sequence[Forecast]
    precision: str  # of the measured runs

    @property
    def source(self) -> Source:
        """The steps behind the predicted times."""
        return Source(self.measurements.device_kind, self.precision)

    def answer(self, forecast: Forecast) -> tuple[str, str, str]:
        """Returns the three lines for a cluster."""
        return answer(forecast, self.measurements, self.precision)


def plan_content(plan: Plan) -> dict[str, object]:
    """Returns the content of `plan.json`."""
    measurements, measured = plan.measurements, plan.measurements.measured
    return {
        "config": plan.name,
        "precision": plan.precision,
        "clusters": {
            forecast.cluster.name: {
                "answer": plan.answer(forecast),
                "cells": [cell._asdict() for cell in forecast.cells],
                "best": forecast.best._asdict(),
                "best_batch": forecast.best_batches,
                "best_batches": forecast.listed,
                "models_an_hour": hourly_models(forecast),
                "compute_scale": forecast.compute_scale,
                "scaled_by_user": forecast.scale_given,
                "times_of": times_of(forecast, plan.source),
            }
            for forecast in plan.forecasts
        },
        "rule": plan.rule._asdict(),
        "target": measurements.target,
        "metric": measurements.metric,
        "curves": measurements.curves,
        "measured": {
            "device": measurements.device_kind,
            "precision": plan.precision,
            **{name: value for name, value in measured._asdict().items() if name not in OTHERWISE_IN_JSON},
            **{name: getattr(measured.optim, name) for name in ("batch_size", "learning_rate", "scaling_warmup_epochs")},
            "ratios": measured.ratios._asdict(),
            "step_s": dict(zip(*measured.train, strict=True)),
            "validation_s": dict(zip(*measured.passes, strict=True)),
            "base_run": {"epochs": measurements.base_epochs, "seconds": measurements.base_s},
            "epochs": measurements.epochs,
            "seconds": measurements.seconds,
            "notes": measurements.notes,
            "versions": versions(),
            "git_commit": git_commit(),
        },
    }


def hourly_models(forecast: Forecast) -> dict[int, dict[str, dict[str, float]]]:
    """Returns the predicted models an hour by number of devices n and by strategy, from the median times to the target.

    The key "side_by_side" has those of n runs at the same time, one on each device. Without predictions for one device it has
    strong scaling only. The key "one_after_another" has those of one run at a time on all n devices.
    """
    alone, hourly = alone_s(forecast), {}
    for cell in forecast.cells:
        side_by_side = {name: models_an_hour.rate(seconds, at_once=cell.devices) for name, seconds in alone.items()}
        of_count = hourly.setdefault(cell.devices, {"side_by_side": side_by_side, "one_after_another": {}})
        of_count["one_after_another"][cell.scaling] = models_an_hour.rate(cell.seconds)
    return hourly


def alone_s(forecast: Forecast) -> dict[str, float]:
    """Returns the median seconds on one device by strategy. Those of strong scaling, as in each speed-up, are always known."""
    first = forecast.cells[0]
    return {"strong": first.speedup * first.seconds} | {
        cell.scaling: cell.seconds for cell in forecast.cells if cell.devices == 1
    }


def strict_json(value: object) -> object:
    """Returns a value as strict JSON allows it. A number that is not finite becomes null.

    >>> strict_json({1: (math.inf, 2.0)})
    {'1': [None, 2.0]}
    """
    if isinstance(value, dict):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
