"""The first sentence of a report: which strategy on how many devices was the fastest, how fast that was, and how sure it is."""

import math
from typing import NamedTuple

from gmmae.plotting import tables
from gmmae.scaling.strategies import STRATEGIES
from gmmae.sweep.report import capped_batches, efficiency, superlinear
from gmmae.sweep.report.efficiency import Summary
from gmmae.sweep.report.outcomes import CONVINCING, LEAST_SEEDS, devices_text, listed, seeds_text
from gmmae.sweep.report.results import Results


class Place(NamedTuple):
    """A strategy on a number of devices, whose median run reached the target."""

    scaling: str
    devices: int
    found: Summary


def answer(results: Results) -> str:
    """One sentence; it names a winner only where a median run reached the target and its time is known.

    A second sentence says where the winner's speed-up is an artefact of the machine on which steps were measured.
    The fewest devices win among equal times; strategies that share the winning time there are named together.
    """
    if not results.runs:
        return "No run is computed yet."
    if not results.config.run.stop.target:
        return "**No target was set** (`run.stop.target` is 0), so none was reached and none was missed: no strategy is the fastest."
    if results.clock.kind == "unknown":
        return f"**Which strategy is the fastest is unknown**, since {results.clock.note[0].lower()}{results.clock.note[1:]}"
    places = _places(results)
    if not places:
        stop = results.config.run.stop
        tried = sorted({run.key.devices for run in results.runs})
        return (
            f"**No strategy's median run reached the target** validation {stop.monitor} of {stop.target:g} on "
            f"{devices_text(tried)}, and a miss counts as an infinite time."
        )
    first = min(places, key=lambda place: (place.found.median, place.devices))
    alike = [place for place in places if (place.devices, place.found.median) == (first.devices, first.found.median)]
    others = [place for place in places if place.scaling not in {one.scaling for one in alike}]
    told = f"{_winner(results, first, alike)}; {_surety(results, alike, others)}."
    return told + superlinear.headline(results, first.scaling, first.devices)


def _places(results: Results) -> list[Place]:
    """The runs with a finite median."""
    found = ((scaling, n, results.seconds(scaling, n)) for scaling in results.config.scaling for n in results.counts)
    return [Place(scaling, n, one) for scaling, n, one in found if one is not None and math.isfinite(one.median)]


def _winner(results: Results, first: Place, alike: list[Place]) -> str:
    labels = listed(_label(results, place) for place in alike)
    text = f"**Fastest: {labels} on {devices_text([first.devices])}, {tables.seconds(first.found.median)} s to the target"
    base = results.seconds(first.scaling, 1)
    if first.devices > 1 and base is not None and math.isfinite(base.median):
        text += f", {tables.ratio(base.median / first.found.median)} times as fast as one device"
    of = f"the median of {first.found.runs} seeds" if first.found.runs > 1 else "one seed"
    if first.found.interval:
        of += f", interval {tables.interval_text(first.found.interval, tables.seconds)}"
    if first.found.reached < first.found.runs:
        of += f", of which {first.found.reached} reached it"
    return f"{text}** ({of}; {_clock(results)})"


def _label(results: Results, place: Place) -> str:
    return STRATEGIES[place.scaling].label + capped_batches.mark(results.group(place.scaling, place.devices))


def _clock(results: Results) -> str:
    if results.clock.kind == "projected":
        return f"{results.clock.short}, not measured there"
    return f"measured, but {results.clock.short}" if results.clock.short else "measured"


def _surety(results: Results, alike: list[Place], others: list[Place]) -> str:
    """The winner against the fastest run of another strategy, over the seeds that both have."""
    if len(results.config.scaling) == 1:
        return "there is no other strategy"
    scaling = {place.scaling for place in alike}
    if len(scaling) == len(results.config.scaling):
        return "no strategy was faster on more devices"
    if not others:
        computed = any(run.key.scaling not in scaling for run in results.runs)
        return "no other strategy's median run reached it" if computed else "no other strategy is computed yet"
    second = min(others, key=lambda place: (place.found.median, place.devices))
    against = f"the next, {_label(results, second)} on {devices_text([second.devices])}"
    against += f" with {tables.seconds(second.found.median)} s,"
    first = alike[0]
    base, other = results.times(first.scaling, first.devices), results.times(second.scaling, second.devices)
    if not base.keys() & other.keys():
        return f"{against} has no seed in common with it"
    found = efficiency.paired(base, other)
    text = f"{against} was slower in {found.slower} of {seeds_text(found.pairs)}"
    if found.pairs == 1:
        return f"{text}, and one seed is an example, not a comparison"
    if found.p_value is None:
        return text
    p_value = f"sign test of these two alone, p = {found.p_value:.2g}"
    if found.p_value < CONVINCING:
        return f"{text}, which is significant ({p_value})"
    unsure = "too few to be sure" if found.pairs < LEAST_SEEDS else "which is not significant"
    return f"{text}, {unsure} ({p_value})"
