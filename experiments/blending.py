"""Compares blendings: real nodules inserted into scans, against real nodules in their own scans.

    python -m experiments.blending NODULES SCANS [--count 120]

NODULES is a folder of volumes with masks, wider than their nodules. SCANS is shaped like LUNA16. It prints for each blending:

- seam: the second difference of HU along a row at the band's end, relative to that 1 to 4 mm farther out in the same scan.
  It is 1 if no seam is visible. The value around real nodules at the same distance is printed too;
- AUC: how well a logistic classifier (5 folds by patient) separates inserted from real nodules by their surroundings.
  It uses the seam, and the mean, standard deviation and gradient in rings about the surface, relative to the tissue beyond.
  0.5 is perfect. Scans other than the nodules' own raise it. So it compares blendings with each other, and with `nothing`, a
  scan without a nodule. Its 95 % interval resamples patients, with fixed classifiers;
- shift: the change of the mean within the nodule in HU (mean of the absolute values).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import SimpleITK as sitk
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.options import Parser, guarded
from experiments.downstream import figure
from gmmae.data.extraction.prepare import load_prepared, prepare
from gmmae.data.settings import DataConfig
from gmmae.generation.insertion import blending, noise
from gmmae.generation.insertion.cubes import as_nodule, band_mm
from gmmae.generation.insertion.hosts import annotated, list_scans, read_annotations, read_host
from gmmae.generation.insertion.lungs import find_lungs, signed_distance
from gmmae.generation.insertion.placing import Placement, Target, find_placement
from gmmae.generation.judging.bootstrap import Estimate, estimate, weights

RINGS_MM = ((-1.0, 0.0), (0.0, 1.0), (1.0, 2.0), (2.0, 3.0))


def paste(host, nodule, distance_mm, band_mm, spacing_mm):
    """Pastes the nodule and the tissue of its cube up to the band's end, without blending."""
    return np.where(distance_mm < band_mm, nodule, host)


def alpha(host, nodule, distance_mm, band_mm, spacing_mm):
    """Blends with weights of 1 inside the nodule that fall smoothly to 0 over the band."""
    return host + blending.blend_weight(distance_mm, band_mm) * (nodule - host)


def screened(screening_mm, *arguments):
    """Applies Poisson blending with another depth of change."""
    with patch.object(blending, "SCREENING_MM", screening_mm):
        return blending.poisson(*arguments)


BLENDINGS = {
    "nothing": lambda host, *_: host,
    "paste": paste,
    "alpha": alpha,
    "poisson, 0.5 mm": partial(screened, 0.5),
    "poisson, 1 mm": partial(screened, 1.0),
    "poisson, 2 mm": partial(screened, 2.0),
    "poisson, 1000 mm": partial(screened, 1000.0),
}


def features(hu, distance_mm, band):
    """Returns the seam, and mean, standard deviation and gradient of the rings relative to the tissue beyond the band.

    Returns None if there is too little tissue.
    """
    beyond = (distance_mm > band + 1) & (distance_mm < band + 4)
    bend = np.abs(hu[:, :, :-2] - 2 * hu[:, :, 1:-1] + hu[:, :, 2:])
    crossing = (distance_mm[:, :, :-2] < band) != (distance_mm[:, :, 1:-1] < band)
    gradient = np.hypot(*np.gradient(hu, axis=(1, 2)))
    rings = [(distance_mm >= low) & (distance_mm < high) for low, high in RINGS_MM]
    if min(beyond.sum(), crossing.sum(), *(ring.sum() for ring in rings)) < 10:
        return None
    seam = np.log(bend[crossing].mean() / bend[beyond[:, :, 1:-1]].mean())
    found = [seam]
    for ring in rings:
        found += [
            hu[ring].mean() - np.median(hu[beyond]),
            np.log(hu[ring].std() / hu[beyond].std()),
            np.log(gradient[ring].mean() / gradient[beyond].mean()),
        ]
    return np.array(found)


def real(folder: Path, name: str, band: float):
    """Returns the features of a nodule in its own scan."""
    image, mask = (sitk.ReadImage(str(folder / kind / name)) for kind in ("images", "masks"))
    spacing = np.array(image.GetSpacing()[::-1])
    inside = sitk.GetArrayFromImage(mask) > 0
    return features(sitk.GetArrayFromImage(image).astype(float), -signed_distance(inside, spacing), band)


def main() -> None:
    """Prints the table."""
    parser = Parser(__doc__)
    parser.add_argument("nodules", type=Path)
    parser.add_argument("scans", type=Path)
    parser.add_argument("--count", type=int, default=120)
    args = parser.parse_args()
    data = DataConfig(source="cubes", root=str(args.nodules), shape=32, padding="replicate")
    nodules, _ = load_prepared(prepare(data))
    table = read_annotations(args.scans)
    hosts = [read_host(uid, path) for uid, path in list_scans(args.scans)[0].items()]
    lungs = [find_lungs(host) for host in hosts]
    noises = [noise.measure(host, lung) for host, lung in zip(hosts, lungs, strict=True)]
    known, shifts = {name: [] for name in ("real", *BLENDINGS)}, {name: [] for name in BLENDINGS}
    patients: list[str] = []
    order = np.random.default_rng(0).permutation(len(nodules.names))
    for i in order:
        if len(known["real"]) == args.count:
            break
        nodule = as_nodule(nodules, int(i))
        chosen = int(i) % len(hosts)
        host, rng = hosts[chosen], np.random.default_rng([1, i])
        occupied = [(centre, diameter / 2) for centre, diameter in annotated(table.rows.get(host.uid, []))]
        own = real(args.nodules, nodules.names[i], band_mm(host.grid))
        target = Target(host, lungs[chosen], noises[chosen], occupied)
        place = None if own is None else find_placement(rng, nodule, target, None)
        if not isinstance(place, Placement):
            continue
        z, y, x = place.resampled.region
        margin = np.ceil(5 / host.grid.spacing_mm).astype(int)
        # The region holds the band alone; tissue farther out is compared with.
        wide = tuple(slice(max(s.start - m, 0), s.stop + m) for s, m in zip((z, y, x), margin, strict=True))
        around = host.voxels[wide].astype(float)
        inner = tuple(slice(s.start - w.start, s.stop - w.start) for s, w in zip((z, y, x), wide, strict=True))
        before = around[inner].copy()
        hu = place.resampled.hu + blending.dense(before, place.resampled.hu) * (before - place.resampled.hu)
        width = band_mm(host.grid)
        support = np.zeros(around.shape, bool)
        support[inner] = place.resampled.distance_mm < 0
        distance = -signed_distance(support, host.grid.spacing_mm)
        distance[inner] = place.resampled.distance_mm
        rows, moved = {}, {}
        for name, blend in BLENDINGS.items():
            around[inner] = blend(before, hu, place.resampled.distance_mm, width, host.grid.spacing_mm)
            rows[name] = features(around, distance, width)
            moved[name] = abs(float((around[inner] - hu)[place.label].mean()))
        if all(row is not None for row in rows.values()):
            known["real"].append(own)
            patients.append(nodules.groups[i])
            for name, row in rows.items():
                known[name].append(row)
                shifts[name].append(moved[name])
    noise_hu = np.mean([n.hu for n in noises])
    print(f"{len(patients)} nodules of {len(set(patients))} patients in {len(hosts)} scans with noise of {noise_hu:.0f} HU")
    reference = np.array(known["real"])
    print(f"{'':<18} seam  AUC (95 % interval)  shift\n{'real':<18} {np.exp(np.median(reference[:, 0])):.2f}")
    for name in BLENDINGS:
        both = np.concatenate([reference, np.array(known[name])])
        label = np.repeat([0, 1], len(reference))
        folds = [fold_of(patients, fold) for fold in range(5)]
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1))
        score = np.asarray(cross_val_predict(model, both, label, cv=folds, method="predict_proba"))[:, 1]
        seam = np.exp(np.median(np.array(known[name])[:, 0]))
        found = auc(score, patients)
        print(f"{name:<18} {seam:.2f}  {found.value:.3f} ({found.low:.3f} to {found.high:.3f})  {np.mean(shifts[name]):.0f}")


def fold_of(patients: Sequence[str], fold: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns training and test samples of pairs. All first ones of the pairs come before all second ones.

    All nodules of a patient and their insertions are in one fold.
    """
    _, number = np.unique(patients, return_inverse=True)
    test = np.tile(number % 5 == fold, 2)
    return np.flatnonzero(~test), np.flatnonzero(test)


def auc(score: np.ndarray, patients: Sequence[str]) -> Estimate:
    """Returns how often an inserted nodule has a higher score than a real one, with its interval by patient.

    Args:
      score: of all real nodules, then of their insertions.
      patients: of the pairs.
    """
    label = ["0"] * len(patients) + ["1"] * len(patients)
    weight = np.concatenate([np.ones((1, len(score))), weights([*patients, *patients], seed=0)])
    value, *resampled = figure(np.column_stack([1 - score, score]), label, ["0", "1"], weight)
    return estimate(value, np.array(resampled))


if __name__ == "__main__":
    guarded(main)
