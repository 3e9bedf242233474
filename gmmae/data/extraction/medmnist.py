"""The files of MedMNIST v2 with three dimensions, such as `nodulemnist3d.npz`, in 28³ or 64³ voxels.

A file has `train_images`, `val_images` and `test_images` `[N, z, y, x]` of bytes, and for each the labels `[N, 1]`. The
division into training, validation and test is MedMNIST's own. Classes have the names of the package `medmnist`, where the name
of the file tells which data set it is; otherwise they have their numbers.

Source: Yang et al., Scientific Data 10:41, 2023. Names and checksums are those of `medmnist/info.py`, version 3.0.2.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from gmmae.data.extraction.arrays import VOLUMES_ARRAY, array_header, array_names, stream
from gmmae.data.extraction.tasks import Item, Plan, Task, fingerprint, task
from gmmae.data.settings import DataConfig
from gmmae.data.splits import SPLITS
from gmmae.data.volumes import DataError

RECORD = "https://zenodo.org/records/10519652"
"""Record of all files."""
WAY_OUT = f"get it again from {RECORD}"


class Dataset(NamedTuple):
    """A data set of MedMNIST.

    Attributes:
      labels: names of the classes, in the order of their numbers.
      md5: checksums of the files of 28³ and of 64³ voxels.
    """

    labels: tuple[str, ...]
    md5: tuple[str, str]


_ORGANS = (
    *("liver", "kidney-right", "kidney-left", "femur-right", "femur-left", "bladder"),
    *("heart", "lung-right", "lung-left", "spleen", "pancreas"),
)

DATASETS = {
    "organmnist3d": Dataset(_ORGANS, ("a0c5a1ff56af4f155c46d46fbb45a2fe", "58a2205adf14a9d0a189cb06dc78bf10")),
    "nodulemnist3d": Dataset(("benign", "malignant"), ("8755a7e9e05a4d9ce80a24c3e7a256f3", "c47c5b7d457bf6332200d2ea6d64ecd8")),
    "fracturemnist3d": Dataset(
        ("buckle rib fracture", "nondisplaced rib fracture", "displaced rib fracture"),
        ("6aa7b0143a6b42da40027a9dda61302f", "f01d7e6316aedf4210da0da5b7437b42"),
    ),
    "adrenalmnist3d": Dataset(
        ("normal", "hyperplasia"), ("bbd3c5a5576322bc4cdfea780653b1ce", "17721accfe9fb005146a47d33bc54b2f")
    ),
    "vesselmnist3d": Dataset(("vessel", "aneurysm"), ("b41fd4f7e7e2feedddb201585ecafa1b", "6bb274a8846e1097066dcd64e2c4520f")),
    "synapsemnist3d": Dataset(
        ("inhibitory synapse", "excitatory synapse"), ("1235b78a3cd6280881dd7850a78eadb6", "43bd14ebf3af9d3dd072446fedc14d5e")
    ),
}
"""The data sets of three dimensions, by the names of their files."""


def dataset_name(path: Path) -> str:
    """Returns the data set that a file's name tells, or an empty text.

    >>> dataset_name(Path("nodulemnist3d_64.npz")), dataset_name(Path("mine.npz"))
    ('nodulemnist3d', '')
    """
    name = re.sub(r"_64$", "", path.stem.lower())
    return name if name in DATASETS else ""


def plan(config: DataConfig) -> Plan:
    """Lists the tasks of a file: the images of training, validation and test.

    Raises:
      DataError: no such file, or arrays that are not those of MedMNIST with three dimensions.
    """
    root = config.folder
    if root.suffix != ".npz" or not root.is_file():
        raise DataError(
            "data.root must be one .npz of MedMNIST when data.source is medmnist, such as nodulemnist3d.npz of "
            f"{RECORD}; got {config.root or 'none'}"
        )
    counts = _counts(root)
    dataset = DATASETS.get(dataset_name(root))
    tasks = [_task(root, split, key, count, dataset) for (split, key), count in zip(SPLITS.items(), counts, strict=True)]
    return Plan(tuple(tasks), (), sum(counts), fingerprint(root.parent, tasks), "", WAY_OUT)


def _counts(root: Path) -> list[int]:
    """Checks names, types and shapes of all arrays. Returns the number of volumes of each part."""
    try:
        keys = array_names(root)
    except DataError as error:
        raise DataError(f"{error}: {WAY_OUT}") from error
    wanted = [f"{part}_{what}" for part in SPLITS.values() for what in ("images", "labels")]
    if missing := [key for key in wanted if key not in keys]:
        hint = ": one .npz of volumes is read with --data.source cubes" if VOLUMES_ARRAY in keys else ""
        raise DataError(
            f"{root}: a file of MedMNIST must hold {', '.join(wanted)}; it lacks {', '.join(missing)} and has "
            f"{', '.join(keys) or 'none'}{hint}"
        )
    shapes = {}
    for key in wanted:
        shapes[key], dtype = array_header(root, key)
        if key.endswith("images") and dtype != np.uint8:
            raise DataError(f"{root}: {key} must be bytes (uint8); got {dtype}")
        if key.endswith("labels") and dtype.kind not in "iu":
            raise DataError(f"{root}: {key} must be whole numbers; got {dtype}")
    for part in SPLITS.values():
        _check_shapes(root, part, shapes)
    edges = {shapes[f"{part}_images"][1:] for part in SPLITS.values()}
    if len(edges) > 1:
        raise DataError(f"{root}: all images must have one shape; got {' and '.join(map(str, sorted(edges)))}")
    return [shapes[f"{part}_images"][0] for part in SPLITS.values()]


def _check_shapes(root: Path, part: str, shapes: dict[str, tuple[int, ...]]) -> None:
    images, labels = shapes[f"{part}_images"], shapes[f"{part}_labels"]
    if len(images) == 3 or (len(images) == 4 and images[-1] == 3):
        size = " × ".join(map(str, images[1:3]))
        raise DataError(
            f"{root}: images must have the three axes z, y, x; got images of {size} pixels with two, as those of pathmnist: "
            f"give one of {', '.join(f'{name}.npz' for name in DATASETS)}"
        )
    if len(images) != 4 or len(set(images[1:])) != 1:
        raise DataError(f"{root}: {part}_images must be cubes, of the shape (N, n, n, n); got {images}")
    if images[0] < 1:
        raise DataError(f"{root}: {part}_images must hold a volume; it has the shape {images}")
    if labels not in ((images[0], 1), (images[0],)):
        raise DataError(f"{root}: {part}_labels must have the shape ({images[0]}, 1), one for each image; got {labels}")


def _task(root: Path, split: str, part: str, count: int, dataset: Dataset | None) -> Task:
    labels: Integer[np.ndarray, " n"] = next(stream(root, f"{part}_labels", whole=True)).reshape(-1)
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (dataset is not None and high >= len(dataset.labels)):
        wanted = "0 or more" if dataset is None else f"0 to {len(dataset.labels) - 1}"
        raise DataError(f"{root}: {part}_labels must be {wanted}; got {low} to {high}")
    names = [str(label) if dataset is None else dataset.labels[label] for label in labels.tolist()]
    array = f"{part}_images"
    items = []
    for i in range(count):
        name = f"{root.stem}_{part}_{i:05d}"
        items.append(Item(name, f"{array}[{i}]", name, names[i], None, None, part=i, array=array, split=split))
    return task(root, f"{root.name} {array}", tuple(items))
