"""Reads the commands that the host issues to a GPU, from the list that XLA writes while it compiles a program.

A command is a CUDA graph, or a launch, copy or collective outside of graphs. The text of the compiled program does not show
graphs. All functions are pure functions of text.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

FILES = "*.thunk_sequence_after_thunk_passes.txt"
"""The list's file in the folder of XLA's option `xla_dump_to`."""

LOOP = "kWhile"
_WAITING = "kAsyncDone"
_CONTAINERS = (LOOP, "kConditional", "kSequential")


class Thunk(NamedTuple):
    """Entry of the list.

    Attributes:
      kind: XLA's name of it.
      parts: what it consists of. Those of a loop are its body.
    """

    kind: str
    parts: "list[Thunk]"


def parse(text: str) -> list[Thunk]:
    """Returns the entries of the outermost level.

    Raises:
      ValueError: the text has no entry.
    """
    outermost: list[Thunk] = []
    above: list[tuple[int, Thunk]] = []  # with their indentation, from the outermost on
    in_condition = False  # of a loop; its body follows
    for line in text.splitlines():
        if line.strip() in ("condition:", "body:"):
            in_condition = line.strip() == "condition:"
        elif not in_condition and (entry := re.match(r"( *)\d+: (k\w+)", line)):
            indentation, thunk = len(entry[1]), Thunk(entry[2], [])
            while above and above[-1][0] >= indentation:
                above.pop()
            (above[-1][1].parts if above else outermost).append(thunk)
            above.append((indentation, thunk))
    if not outermost:
        raise ValueError("a list of XLA's commands must have an entry; got none")
    return outermost


def step(program: list[Thunk], steps: int) -> list[Thunk]:
    """Returns the entries of a step: the body of the first loop, or none if a graph has the loop. One step is the program."""
    if steps == 1:
        return program
    return next((thunk.parts for thunk in program if thunk.kind == LOOP), [])


def commands(thunks: list[Thunk]) -> Iterator[str]:
    """Yields the kinds of the host's commands. Loops that are in no graph count as one pass."""
    for thunk in thunks:
        if thunk.kind in _CONTAINERS:
            yield from commands(thunk.parts)
        elif thunk.kind != _WAITING:
            yield thunk.kind
