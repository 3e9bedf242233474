"""The numbers behind the answer of a plan, in sentences."""

import math

from gmmae.planner import stability, step_ratios
from gmmae.planner.answer import AS_MEASURED, time_text, times_of
from gmmae.planner.measure import PlanMeasurements
from gmmae.planner.plan_content import Plan
from gmmae.planner.prediction import BEST_BATCH, Forecast, Measured
from gmmae.sweep import step_times
from gmmae.sweep.report import models_an_hour

SEVERAL = (
    "Models an hour: seeds side by side have a device each; runs one after another have all devices. Times are medians of runs "
    f"that reach the target. {models_an_hour.ASSUMPTION}"
)
"""The explanation of the models an hour."""


def evidence(plan: Plan) -> list[str]:
    """Returns the lines with the numbers behind the answer."""
    measurements, rule = plan.measurements, plan.rule
    measured, kind = measurements.measured, measurements.device_kind
    law = f"S(B) = {rule.smin:.0f} (1 + {rule.bn:.3g} / B) near the base batch"
    steps = f"{measured.base_steps:.0f} at batch {measured.optim.batch_size}"
    lines = [
        _limit(plan),
        f"Steps to {measurements.metric} {measurements.target:g}: {steps}; {law}. A step takes "
        f"{1e3 * rule.overhead_s:.3g} ms + {1e3 * rule.sample_s:.3g} ms a sample on {kind} in {plan.precision}, with quartiles "
        f"within {100 * measurements.step_spread:.0f} % of the medians.",
    ]
    for forecast in plan.forecasts:
        cluster = f", {forecast.cluster.name}" * (len(plan.forecasts) > 1)
        batches = ", ".join(f"{batch} on {n}" for n, batch in forecast.best_batches.items())
        lines.append(f"The strategy best-batch{cluster}: {batches}; --optim.best-batches {' '.join(map(str, forecast.listed))}")
    lines += [
        f"--scale-compute takes the factor from {kind} to {forecast.cluster.device}. It gives times of {forecast.cluster.name}."
        for forecast in plan.forecasts
        if times_of(forecast, plan.source).startswith(AS_MEASURED)
    ]
    lines += [*_short_runs(measured), _stable_rates(measured), _effort(measurements)]
    lines += [_options(forecast, len(plan.forecasts) > 1) for forecast in plan.forecasts]
    return [*lines, *(f"warning: {note}" for note in (*_busy(measurements), *measurements.notes))]


def _options(forecast: Forecast, several: bool) -> str:
    """Returns the options that train the choice."""
    best, of = forecast.best, f" for {forecast.cluster.name}" * several
    batches = f" --optim.best-batches {' '.join(map(str, forecast.listed))}" * (best.scaling == BEST_BATCH)
    options = f"--scaling {best.scaling} --parallel.devices {best.devices}{batches}"
    return f"To train the choice{of}, add to the plan's options: {options}"


def _busy(measurements: PlanMeasurements) -> list[str]:
    """Returns a note if the step times scatter as on a machine with other work."""
    if measurements.step_spread <= step_times.MAX_SPREAD:
        return []
    return [
        "the step times scatter as on a machine with other work, and so may all predicted times: plan again in another "
        "--workdir when it is idle"
    ]


def _limit(plan: Plan) -> str:
    """Returns the rule of thumb: noise against overhead."""
    rule, base = plan.rule, plan.measurements.measured.optim.batch_size
    ratio = rule.overhead_s / (rule.sample_s * base) if rule.sample_s else math.inf
    return (
        f"The rule: growing the batch wins where (a + c) / (b B) > B / Bn. Here a / (b B) = {ratio:.2g} on one device and "
        f"B / Bn = {base / rule.bn:.2g}."
    )


def _short_runs(measured: Measured) -> list[str]:
    """Returns sentences on what the two short runs have shown."""
    lines, weak, exponent = [], measured.ratios.weak, measured.ratios.rate_exponent
    if weak is not None:
        lines.append(f"Steps at equal loss: twice the batch takes {math.exp(weak):.2f} of the base run's.")
    if exponent is not None:
        lines.append(f"Twice the learning rate takes {2**exponent:.2f} of the steps, by the second short run.")
    return lines


def _effort(measurements: PlanMeasurements) -> str:
    """Returns a sentence on what the measurements cost, relative to the base run."""
    seconds, epochs = sum(measurements.seconds.values()), sum(measurements.epochs.values())
    base_epochs, base_s = measurements.base_epochs, measurements.base_s
    return (
        f"Measuring took {epochs:.0f} epochs and {time_text(seconds)}: {epochs / base_epochs:.1f} times the base run's "
        f"{base_epochs} epochs, {seconds / base_s:.1f} times its {time_text(base_s)}, compiling included."
    )


def _stable_rates(measured: Measured) -> str:
    """Returns a sentence on the learning rates that the trials allow."""
    factor, largest = stability.max_stable_factor(measured.progress), max(measured.progress)
    if factor <= largest:
        text = f"The learning rate may be {factor:.2g} times the base rate before an epoch at the base batch fails"
    elif largest > 1:
        text = f"No trial failed, up to {largest:g} times the base rate"
    elif step_ratios.is_doubtful(measured.ratios):
        text = "No trial of a higher learning rate was made"
    else:
        text = "The second short run makes trials of higher learning rates needless"
    shares = ", ".join(
        f"{100 * share:.0f} % at {factor:g} η" for factor, share in sorted(measured.active_unit_fractions.items())
    )
    return f"{text}; units that still learn after the linear rule's first steps: {shares}." if shares else f"{text}."
