"""Train a Gaussian-mixture autoencoder: `python train.py --help`. The same as `gmmae train`."""

import sys

from gmmae.cli.main import COMMANDS
from gmmae.system.guard import guarded

if __name__ == "__main__":
    sys.exit(guarded(COMMANDS["train"], sys.argv[1:], "python train.py"))
