"""Train a Gaussian-mixture autoencoder: `python train.py --help`. The same as `gmmae train`."""

import sys

from gmmae.commands.cli import guarded, start_training

if __name__ == "__main__":
    sys.exit(guarded(start_training, sys.argv[1:], "python train.py"))
