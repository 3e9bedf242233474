"""The files of MedMNIST v2 with three dimensions, such as `nodulemnist3d.npz`, in 28³ or 64³ voxels.

A file has `train_images`, `val_images` and `test_images` `[N, z, y, x]` of bytes, and for each the labels `[N, 1]`. The
division is MedMNIST's own. Classes have names if that of the file tells the data set.

Source: Yang et al., Scientific Data 10:41, 2023. Names and checksums are those of `medmnist/info.py`, version 3.0.2.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gmmae.data.extraction.annotations import Item
from gmmae.data.extraction.arrays import array_header, member
from gmmae.data.extraction.tasks import Plan, Task, task
from gmmae.data.settings import DataConfig
from gmmae.data.splits import SPLITS
from gmmae.data.volumes import DataError

RECORD = "https://zenodo.org/records/10519652"
WAY_OUT = f"get it again from {RECORD}"


class Dataset(NamedTuple):
    """A data set of MedMNIST."""

    labels: tuple[str, ...]  # names of the classes
    md5: tuple[str, ...]  # of the files of 28³ and of 64³ voxels


def _dataset(labels: str, *md5: str) -> Dataset:
    return Dataset(tuple(labels.split(", ")), md5)


DATASETS = {
    "organmnist3d": _dataset(
        "liver, kidney-right, kidney-left, femur-right, femur-left, bladder, heart, lung-right, lung-left, spleen, pancreas",
        "a0c5a1ff56af4f155c46d46fbb45a2fe",
        "58a2205adf14a9d0a189cb06dc78bf10",
    ),
    "nodulemnist3d": _dataset("benign, malignant", "8755a7e9e05a4d9ce80a24c3e7a256f3", "c47c5b7d457bf6332200d2ea6d64ecd8"),
    "fracturemnist3d": _dataset(
        "buckle rib fracture, nondisplaced rib fracture, displaced rib fracture",
        "6aa7b0143a6b42da40027a9dda61302f",
        "f01d7e6316aedf4210da0da5b7437b42",
    ),
    "adrenalmnist3d": _dataset("normal, hyperplasia", "bbd3c5a5576322bc4cdfea780653b1ce", "17721accfe9fb005146a47d33bc54b2f"),
    "vesselmnist3d": _dataset("vessel, aneurysm", "b41fd4f7e7e2feedddb201585ecafa1b", "6bb274a8846e1097066dcd64e2c4520f"),
    "synapsemnist3d": _dataset(
        "inhibitory synapse, excitatory synapse", "1235b78a3cd6280881dd7850a78eadb6", "43bd14ebf3af9d3dd072446fedc14d5e"
    ),
}
"""By the names of their files."""


def dataset_name(path: Path) -> str:
    """The data set that a file's name tells, or an empty text.

    >>> dataset_name(Path("nodulemnist3d_64.npz")), dataset_name(Path("mine.npz"))
    ('nodulemnist3d', '')
    """
    name = re.sub(r"_64$", "", path.stem.lower())
    return name if name in DATASETS else ""


def plan(config: DataConfig) -> Plan:
    """Lists the images of training, validation and test."""
    root = config.folder
    if root.suffix != ".npz" or not root.is_file():
        raise DataError(
            "data.root must be one .npz of MedMNIST when data.source is medmnist, such as nodulemnist3d.npz of "
            f"{RECORD}; got {config.root or 'none'}"
        )
    known, tasks, shapes = DATASETS.get(dataset_name(root)), list[Task](), set[tuple[int, ...]]()
    try:
        for split, part in SPLITS.items():
            array, items = f"{part}_images", list[Item]()
            (images, dtype), (labels, kind) = array_header(root, array), array_header(root, f"{part}_labels")
            n = images[:1]
            if dtype != np.uint8 or len(images) != 4 or len(set(images[1:])) != 1 or not min(images):
                raise DataError(
                    f"{root}: {array} must be cubes of bytes, uint8 of the shape (N, n, n, n); got {dtype}, {images}"
                )
            if kind.kind not in "iu" or labels not in (n, (*n, 1)):
                raise DataError(f"{root}: {part}_labels must be whole numbers of the shape {(*n, 1)}; got {kind}, {labels}")
            numbers = member(root, f"{part}_labels").reshape(-1)
            if numbers.min() < 0 or (known and numbers.max() >= len(known.labels)):
                allowed = f"0 to {len(known.labels) - 1}" if known else "0 or more"
                raise DataError(f"{root}: {part}_labels must be {allowed}; got {numbers.min()} to {numbers.max()}")
            for i, number in enumerate(numbers.tolist()):
                name, category = f"{root.stem}_{part}_{i:05d}", known.labels[number] if known else str(number)
                items.append(Item(name, f"{array}[{i}]", name, category, part=i, array=array, split=split))
            tasks.append(task(root, f"{root.name} {array}", items))
            shapes.add(images[1:])
    except DataError as error:
        raise DataError(f"{error}: {WAY_OUT}") from error
    if len(shapes) > 1:
        raise DataError(f"{root}: all images must have one shape; got {' and '.join(map(str, sorted(shapes)))}")
    return Plan(tuple(tasks), [], sum(len(each.items) for each in tasks), WAY_OUT)
