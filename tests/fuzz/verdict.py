"""The verdict on a call: the right result, or one line that names the place."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from tests.fuzz.calls import Outcome
from tests.fuzz.cases import Change, Expect
from tests.fuzz.commands import Result

ROUNDING = 1e-5
NEAR_HU, NEAR_SHARE, NEAR_MASK = 3.0, 0.03, 0.15
"""Tolerances for another grid: HU of voxels, the relative difference of other numbers, the share of mask voxels."""

Kind = Literal["read", "left out", "refused", "TRACEBACK", "SILENT", "UNNAMED", "NOISY", "REFUSED", "TOO LATE"]


class Verdict(NamedTuple):
    """The outcome of a call. Kinds in capitals are failures.

    - `SILENT`: a wrong result without a message
    - `UNNAMED`: a refusal that is not one line with the place
    - `NOISY`: a refusal beside warnings of a library
    - `REFUSED`: a refusal of a folder that must be read

    Attributes:
      kind: the kind.
      text: the error line, or the fault.
    """

    kind: Kind
    text: str = ""

    @property
    def failed(self) -> bool:
        """Whether the call failed the test."""
        return self.kind.isupper()


def judge(
    outcome: Outcome, expect: Expect, result: Callable[[], Result], right: Callable[[Change], Result], renamed: bool
) -> Verdict:
    """Returns the verdict on a call.

    Args:
      outcome: outcome of the call.
      expect: the expected outcome.
      result: reads the files that the call wrote.
      right: returns the result of a folder that is changed in a way that `expect` names.
      renamed: whether names are not compared.
    """
    if outcome.crash:
        return Verdict("TOO LATE" if outcome.crash.startswith("not done") else "TRACEBACK", outcome.crash)
    if outcome.code != 0:
        return _refusal(outcome, expect)
    if not expect.readings:
        return Verdict("SILENT", "the folder was read; it must be refused")
    try:
        found = result()
    except (OSError, ValueError, KeyError, IndexError) as error:
        return Verdict("SILENT", f"exit code 0 without a result: {error!r}")
    faults: list[str] = []
    for reading in expect.readings:
        if wrong := compare(found, right(reading.like), expect.near, renamed):
            faults.append("; ".join(wrong))
        elif silent := [text for text in reading.says if text not in outcome.out + outcome.err]:
            faults.append(f"the output does not name {', '.join(map(repr, silent))}, which is left out")
        else:
            return Verdict("left out" if reading.says else "read")
    return Verdict("SILENT", min(faults, key=len))


def _refusal(outcome: Outcome, expect: Expect) -> Verdict:
    lines = [line for line in outcome.err.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if len(outcome.errors) != 1 or not last.startswith("error: "):
        return Verdict("UNNAMED", f"exit code {outcome.code}, standard error is {' | '.join(lines[-3:])!r}")
    if outcome.code != expect.code:
        return Verdict("UNNAMED", f"exit code {outcome.code}: {last}")
    if not expect.refuses:
        return Verdict("REFUSED", last)
    if missing := [name for name in expect.names if name not in last]:
        return Verdict("UNNAMED", f"{', '.join(map(repr, missing))} is not in: {last}")
    return Verdict("NOISY" if _noise(lines) else "refused", last)


def _noise(lines: Sequence[str]) -> bool:
    return any("Warning: " in line or "WARNING: In" in line for line in lines)


def compare(found: Result, right: Result, near: bool = False, renamed: bool = False) -> list[str]:
    """Returns the differences between two results, one line each."""
    if found.keys() != right.keys():
        return [f"only one has {', '.join(sorted(found.keys() ^ right.keys()))}"]
    if renamed:
        found, right = _without_names(found), _without_names(right)
    share = NEAR_MASK if "dice" in found else NEAR_SHARE  # a segmentation's loss hangs on the mask's border, as Dice does
    return [f"{name}: {text}" for name in found if (text := _differ(name, found[name], right[name], near, share))]


def _without_names(result: Result) -> Result:
    """Returns the samples in the order of a number that differs between them, without names and files."""
    key = next((name for name in ("loss", "diameter_mm") if name in result), None)
    if "names" not in result or key is None:
        return result
    order = np.argsort(np.asarray(result[key], float), kind="stable")
    columns = {name: np.asarray(column) for name, column in result.items() if name not in ("names", "files")}
    return {name: column[order] if column.shape[:1] == order.shape else column for name, column in columns.items()}


def _differ(name: str, found: object, right: object, near: bool, share: float) -> str:
    one, two = np.asarray(found), np.asarray(right)
    if one.shape != two.shape:
        return f"{_short(found)} for {_short(right)}" if one.ndim < 2 else f"shape {one.shape} for {two.shape}"
    if one.dtype.kind not in "iufb" or two.dtype.kind not in "iufb":
        wrong = np.flatnonzero((one.astype(str) != two.astype(str)).ravel())
        return "" if not len(wrong) else f"{one.ravel()[wrong[0]]!s:.60} for {two.ravel()[wrong[0]]!s:.60}"
    first, second = one.astype(float), two.astype(float)
    if near and name == "dice":
        return ""  # a mask on another grid has other voxels at its border
    if near and name == "masks":
        return "" if np.mean(first != second) <= NEAR_MASK * max(second.mean(), 0.01) else "masks are elsewhere"
    scale = np.nan_to_num(np.abs(second), posinf=0.0) * (share if near else ROUNDING)
    same = np.isclose(first, second, rtol=0, atol=scale + (NEAR_HU if near and name == "values" else 1e-6), equal_nan=True)
    if same.all():
        return ""
    return f"{np.mean(~same):.0%} differ, such as {first[~same].ravel()[0]:.6g} for {second[~same].ravel()[0]:.6g}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 60 else f"{text[:57]}…"
