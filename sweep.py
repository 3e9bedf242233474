"""Compare scaling strategies: `python sweep.py --help`. The same as `gmmae sweep`."""

import sys

from gmmae.cli.main import COMMANDS
from gmmae.system.guard import guarded

if __name__ == "__main__":
    sys.exit(guarded(COMMANDS["sweep"], sys.argv[1:], "python sweep.py"))
