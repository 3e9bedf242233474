"""Train a Gaussian-mixture autoencoder: `python train.py --help`. The same as `gmmae train`."""

import sys

from gmmae.commands.cli import guarded, train

if __name__ == "__main__":
    sys.exit(guarded(train, sys.argv[1:], "python train.py"))
