"""Loss curves of a plain PyTorch program, for `gmmae plan --curves` and for the judgement of its predictions.

    pip install torch==2.13.0 numpy scikit-learn       # in an environment of its own, with Python 3.11
    python experiments/curves_pytorch.py               # there: writes results/curves/, one minute on one core
    python -m experiments.curves_judge                 # where gmmae is installed

Nothing here needs gmmae. Two models train on scikit-learn's digits with Adam, a classifier and an autoencoder. Each trains at
seven batches with three seeds. A run ends a little below its target, and is validated after each epoch.
"""

import csv
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "results" / "curves"
SEEDS = (0, 1, 2)
LEARNING_RATE = 0.001
MAX_EPOCHS = 600
MARGIN = 0.95
"""A run ends at the first epoch whose validation loss is below this share of the target."""


class Workload(NamedTuple):
    """A training on scikit-learn's digits."""

    hidden: int  # units of the hidden layer
    batches: tuple[int, ...]
    planned: tuple[int, int]  # batches of the plan; the base batch is the first one
    target: float  # validation loss


WORKLOADS = {
    "classifier": Workload(64, (8, 16, 32, 64, 128, 256, 512), (32, 128), 0.15),
    "autoencoder": Workload(16, (8, 16, 32, 64, 128, 256, 512), (32, 128), 0.35),
}


def load() -> tuple[Any, Any, Any, Any]:
    """Returns standardised images and classes for training, 1437 samples, and for validation, 360."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits: Any = load_digits()
    images, classes = digits.data, digits.target
    parts: Any = train_test_split(images, classes, test_size=0.2, random_state=0)
    train_x, held_x, train_y, held_y = parts
    mean, deviation = train_x.mean(0), train_x.std(0) + 0.1
    train_x, held_x = (((x - mean) / deviation).astype(np.float32) for x in (train_x, held_x))
    return train_x, train_y, held_x, held_y


def train(name: str, batch: int, seed: int) -> tuple[list[tuple[int, float]], float]:
    """Trains with PyTorch. Returns steps and validation loss after each epoch, and the median seconds of a step."""
    import torch  # pyright: ignore[reportMissingImports] not in gmmae's environment
    from torch import nn  # pyright: ignore[reportMissingImports]

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    train_x, train_y, held_x, held_y = map(torch.from_numpy, load())
    if name == "autoencoder":
        train_y, held_y = train_x, held_x
    loss_of = nn.MSELoss() if name == "autoencoder" else nn.CrossEntropyLoss()
    outputs = 64 if name == "autoencoder" else 10
    model = nn.Sequential(nn.Linear(64, workload.hidden), nn.ReLU(), nn.Linear(workload.hidden, outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    rows, times, step = [], [], 0
    for _ in range(MAX_EPOCHS):
        for places in torch.randperm(len(train_x)).split(batch):
            began = time.perf_counter()
            optimizer.zero_grad()
            loss_of(model(train_x[places]), train_y[places]).backward()
            optimizer.step()
            step += 1
            if len(places) == batch:
                times.append(time.perf_counter() - began)
        with torch.no_grad():
            rows.append((step, float(loss_of(model(held_x), held_y))))
        if rows[-1][1] < MARGIN * workload.target:
            break
    return rows, statistics.median(times)


def curve_file(name: str, batch: int, seed: int) -> Path:
    """Returns the CSV file of a run."""
    return FOLDER / f"{name}_batch{batch}_seed{seed}.csv"


def train_all() -> None:
    """Writes the curves of all runs, and the step times."""
    import torch  # pyright: ignore[reportMissingImports]

    FOLDER.mkdir(parents=True, exist_ok=True)
    step_s: dict[str, dict[int, float]] = {}
    for name, workload in WORKLOADS.items():
        for batch in workload.batches:
            seconds, rows = [], []
            for seed in SEEDS:
                rows, a_step_s = train(name, batch, seed)
                seconds.append(a_step_s)
                with curve_file(name, batch, seed).open("w", newline="") as file:
                    writer = csv.writer(file, lineterminator="\n")
                    writer.writerow(("step", "val_loss", "batch"))
                    writer.writerows((step, f"{loss:.6g}", batch) for step, loss in rows)
            step_s.setdefault(name, {})[batch] = statistics.median(seconds)
            print(f"{name}, batch {batch}: {len(rows)} epochs, {1e3 * step_s[name][batch]:.3f} ms a step", flush=True)
    (FOLDER / "step_times.json").write_text(json.dumps({"torch": torch.__version__, "step_s": step_s}, indent=1) + "\n")


if __name__ == "__main__":
    train_all()
