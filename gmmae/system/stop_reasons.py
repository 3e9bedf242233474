"""Why a run ended, as its record says it, and each reason's exit code."""

TARGET_REACHED = "target_reached"
MAX_EPOCHS = "max_epochs"
TIME_LIMIT = "time_limit"
DIVERGED = "diverged"
COLLAPSED = "collapsed"
STALLED = "stalled"
SIGTERM = "sigterm"
SIGINT = "sigint"
SIGHUP = "sighup"

EXIT_CODES = {
    TARGET_REACHED: 0,
    MAX_EPOCHS: 0,
    TIME_LIMIT: 0,
    STALLED: 0,
    DIVERGED: 3,
    COLLAPSED: 3,
    SIGTERM: 143,
    SIGINT: 130,
    SIGHUP: 129,
}

INTERRUPTED = (SIGTERM, SIGINT, SIGHUP)
"""Stopped from outside; the same command resumes the run."""
