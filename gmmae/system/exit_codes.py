"""The exit codes of a run, and the ends after which it is started again.

All processes of a run end with one code where they can.

| code | what it says | started again |
|---|---|---|
| 0 | finished, whether the target was reached or missed | no |
| 1, 2 | a fault of the program; bad input, or processes that differ | no: it would fail again |
| 3 | diverged or collapsed | no: that is the result |
| 74 | the work directory failed, or another place that is written or read: a full disk | no |
| 130, 129 | Ctrl-C, a terminal that is closed; with a checkpoint | no |
| 143 | SIGTERM (a time limit, a preemption), with a checkpoint | yes, up to a number that the caller sets |
| 75 | a process among several was lost or hung, as the launchers say it | yes, up to 3 times in a row |
| 134, 142 | with others: JAX has aborted it because another one was lost; an epoch did not end. Both are a loss, 75 | as 75 |
| another one above 128 | killed: with other processes that is a loss, 75; alone it would be killed again | no |

Commands other than `train`, `sweep` and `plan` have no checkpoint. One whose output is closed (`| head`) goes on in silence.

The launchers in `launch/` use this:

    python -m gmmae.system.exit_codes run PROCESSES CODE...    # exits with the run's code
    python -m gmmae.system.exit_codes again RESTARTS CODE...   # exits with 0 if a run with these ends is to be started again
"""

import sys
from collections.abc import Sequence

from gmmae.system.errors import LOST_PEER
from gmmae.system.stop_reasons import EXIT_CODES, INTERRUPTED, SIGTERM

MAX_LOSSES = 3
"""In a row. An end with a checkpoint begins a new row."""


def of_run(codes: Sequence[int], processes: int) -> int:
    """The code of a run from those of its processes, or of their launcher, in a shell."""
    # A signal's code is 128 and its number in a shell, or 255 from ssh.
    ours = [EXIT_CODES[reason] for reason in INTERRUPTED]
    failed = [LOST_PEER if processes > 1 and code > 128 and code not in ours else code for code in codes if code]
    # What a process says of itself goes before a loss; and a fault, a small number, before a signal.
    return min((code for code in failed if code != LOST_PEER), default=LOST_PEER if failed else 0)


def again(codes: Sequence[int], restarts: float) -> bool:
    """Whether a run that ended is to be started again, at most `restarts` times after SIGTERM."""
    if codes[-1] == EXIT_CODES[SIGTERM]:
        return codes.count(codes[-1]) <= restarts
    return codes[-1] == LOST_PEER and [*codes[-MAX_LOSSES - 1 :]] != [LOST_PEER] * (MAX_LOSSES + 1)


if __name__ == "__main__":
    _, command, *numbers = sys.argv
    number, *codes = map(int, numbers)
    sys.exit(of_run(codes, number) if command == "run" else not again(codes, number))
