"""Hashes of a run's data and of its workload's file, which later commands compare: moved or renamed data are the same."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gmmae.config.schema import Config
from gmmae.config.toml import differences
from gmmae.system import json_files
from gmmae.system.errors import InputError, write_error
from gmmae.system.files import write_text
from gmmae.workloads import registry
from gmmae.workloads.interface import Splits

FILE = "fingerprint.json"
"""In the folder of a run, and of generated nodules."""

OTHER_CODE = 0.02
"""Relative difference of a validation loss beyond which what computes it must have changed."""


class Fingerprint(NamedTuple):
    """The samples of a run, and the file of its workload.

    Attributes:
      train, validation: words for each sample, in order: a hash of its large arrays and its origin, where that is known; of a
        source only of some. Samples that share a word are one, or of one scan.
      digests: what is compared, by name: the workload's file first, the number of seen validation samples last.
      seen: training samples of the runs that this one descends from, by `init_from` or generated nodules.
    """

    train: list[str]
    validation: list[str]
    samples: int
    digests: dict[str, str]
    seen: list[str]

    @property
    def whole(self) -> bool:
        """Whether all samples have a hash."""
        counts = [self.digests.get(f"number of {split} samples", "") for split in ("train", "validation")]
        return all(re.match(r"(\d+), \1 |$", text) for text in counts)


def of(config: Config, data: Splits) -> Fingerprint:
    """The fingerprint of data that a configuration's workload has loaded."""
    from gmmae.workloads.sources import count, digest, hashes  # JAX must not start where a fingerprint is only read

    names: dict[str, list[str]] = {}
    groups: dict[str, int] = {}
    digests = {"workload file": registry.file_hash(config.workload)}
    for split in ("train", "validation"):
        samples = getattr(data, split)
        of_samples, others = hashes(samples)
        # Groups are compared by members: a name may follow that of a file.
        members = [groups.setdefault(group, len(groups)) for group in data.groups[split]] if data.groups else []
        parts = {"samples": "".join(of_samples), "labels or other arrays": others, "groups": str(members)}
        digests[f"number of {split} samples"] = f"{count(samples)}, {len(of_samples)} of them hashed"
        digests |= {f"{split} {part}": digest(values) for part, values in parts.items()}
        names[split] = words(of_samples, (data.origins or {}).get(split))
    if config.workload not in registry.BUILT_IN:  # those divide no group, or say so
        parts, groups_of = dict(names), data.groups or {}
        if data.test is not None:
            parts["test"] = words(hashes(data.test)[0], (data.origins or {}).get("test"))
        of_train, groups_of_train = _words(parts["train"]), set(map(_text, groups_of.get("train", ())))
        for split in ("validation", "test"):
            if twice := _count_in(of_train, parts.get(split, ())):
                write_error(f"warning: {twice} of {len(parts[split])} {split} samples are training samples too\n")
            if both := [group for group in dict.fromkeys(map(_text, groups_of.get(split, ()))) if group in groups_of_train]:
                write_error(f"warning: groups of samples are in training and in {split}: {len(both)}, such as {both[0]}\n")
        if unhashed := sum(count(getattr(data, split)) - len(names[split]) for split in names):
            write_error(
                f"{unhashed} samples of sources have no hash: they are not compared with those of other parts or runs\n"
            )
    return Fingerprint(**names, samples=count(data.train), digests=digests, seen=[])


def words(hashes: Sequence[str], origins: Sequence[Any] | None) -> list[str]:
    """The entries of a `Fingerprint` for samples with these hashes; some samples of a source go without their origins."""
    if origins is None or len(origins) != len(hashes):
        return [*hashes]
    several = (origin if isinstance(origin, tuple) else (origin,) for origin in origins)
    return [
        " ".join((own, *("_".join(_text(word).split()) for word in parts))) for own, parts in zip(hashes, several, strict=True)
    ]


def _text(name: Any) -> str:  # noqa: ANN401
    """A column of whole numbers may be one of floats, as pandas gives it beside a blank."""
    name = name.decode() if isinstance(name, bytes) else name
    return str(int(name)) if getattr(name, "is_integer", bool)() else str(name)


def _words(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in name.split()}


def _count_in(words: set[str], names: Iterable[str]) -> int:
    return sum(not words.isdisjoint(name.split()) for name in names)


def load(config: Config) -> Fingerprint:
    """The fingerprint of a configuration's data as they are now."""
    return of(config, registry.build(config).load())


def read(folder: Path) -> Fingerprint | None:
    """Reads the fingerprint in a folder; None where there is none."""
    try:
        return json_files.read(
            folder / FILE,
            "have the hashes of data",
            "delete it, and nothing is compared",
            lambda values: json_files.checked(Fingerprint, {name: values[name] for name in Fingerprint._fields}),
        )  # one of before has an entry root too
    except FileNotFoundError:
        return None


def write(fingerprint: Fingerprint, folder: Path) -> None:
    """Writes the file that `read` reads."""
    write_text(folder / FILE, json.dumps(fingerprint._asdict()) + "\n")


def require_same(earlier: Mapping[str, Any], now: Mapping[str, str], folder: Path) -> None:
    """Refuses digests that are not those of the run in a folder."""
    if changes := differences(earlier, now):
        raise InputError(
            f"data and workload must be those that {folder} began with; got others, where {changes}: bring them back, or give "
            "another work directory"
        )


def require_same_data(config: Config, data: Splits, run: Path) -> None:
    """Refuses data that are not those of the run in a folder. A metric may be new in the workload's file."""
    if known := read(run):
        _, *digests = of(config, data).digests.items()
        require_same(known.digests, dict(digests), run)


def warn_of_change(now: float, before: float | None) -> None:
    """Warns where the validation loss of a run's parameters is another one now, as after a change that no hash has seen."""
    if before is not None and math.isfinite(before) and not math.isclose(now, before, rel_tol=OTHER_CODE, abs_tol=1e-8):
        write_error(
            f"warning: the validation loss of these parameters was {before:.6g} in the run and is {now:.6g}: a file that the "
            "workload imports or reads has changed, a setting that `build` computes with, or the program\n"
        )


def warn_of_file(config: Config, digests: Mapping[str, str], run: Path) -> None:
    """Warns where the workload's file has changed since the run in a folder or an exported file."""
    if digests.get("workload file") not in (None, registry.file_hash(config.workload)):
        write_error(f"warning: {config.workload} is no longer the file that {run} was trained with: results may be wrong\n")


def checked(folder: Path, now: Fingerprint) -> Fingerprint:
    """The fingerprint of the run in a folder, whose data must be the same, or `now` if there is none."""
    known = read(folder) or now
    require_same(known.digests, now.digests, folder)
    return now._replace(seen=known.seen, digests=known.digests)


def descended(config: Config, now: Fingerprint) -> Fingerprint:
    """The fingerprint of a run that begins, with the samples that the runs before it have seen.

    Refuses, unless `data.allow_seen`, a validation sample that is among them, or of the scan of one.
    """
    data = getattr(config.settings, "data", None)
    places = [place for place in (config.init_from, getattr(data, "augment_with", None)) if place]
    before = [known for place in places if (known := read(Path(place)))]
    seen = _words(name for known in before for name in (*known.train, *known.seen))
    held_out = _count_in(seen, now.validation)
    if unhashed := sum(known.samples - len(known.train) for known in before):
        write_error(
            f"warning: {unhashed} training samples of {' or '.join(places)} came from a source and have no hash, so the "
            "validation samples could not be compared with them\n"
        )
    if held_out and not getattr(data, "allow_seen", False):
        raise InputError(
            f"validation samples must be new to what a run begins with; got {held_out} of {len(now.validation)} that the model "
            f"of {' or '.join(places)} was trained on: divide the data as it did"
            f"{', or set data.allow_seen' * hasattr(data, 'allow_seen')}"
        )
    entry = {"seen validation samples": str(held_out)} if held_out else {}
    return now._replace(seen=sorted(seen), digests=now.digests | entry)
