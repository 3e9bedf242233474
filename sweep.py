"""Compare scaling strategies: `python sweep.py --help`. The same as `gmmae sweep`."""

import sys

from gmmae.commands.cli import guarded, sweep

if __name__ == "__main__":
    sys.exit(guarded(sweep, sys.argv[1:], "python sweep.py"))
