"""The table of all cases."""

from collections.abc import Iterator
from dataclasses import replace

from tests.fuzz import (
    array_cases,
    csv_cases,
    generated_cases,
    mask_cases,
    name_cases,
    out_cases,
    place_cases,
    run_cases,
    scan_cases,
    volume_cases,
)
from tests.fuzz.cases import Case

MODULES = (
    *(csv_cases, volume_cases, mask_cases, name_cases, place_cases),
    *(scan_cases, array_cases, generated_cases, run_cases, out_cases),
)


def all_cases() -> Iterator[Case]:
    """Yields every case, in the order of the modules."""
    for module in MODULES:
        yield from module.cases()


def thinned() -> Iterator[Case]:
    """Yields every case with two of its commands: the first, and one of the others in turn."""
    for number, case in enumerate(all_cases()):
        first, *others = case.expect.items()
        yield replace(case, expect=dict([first, *(others[number % len(others) :][:1] if others else [])]))


SAMPLED = ("prepare", "segment", "evaluate", "sweep")
"""Commands of the quick sample. They take half a second or less."""

SAMPLE_STEP = 37


def sample() -> list[tuple[Case, str]]:
    """Returns some calls of the table, always the same ones."""
    calls = [(case, command) for case in thinned() for command in case.expect if command in SAMPLED]
    return calls[::SAMPLE_STEP]
