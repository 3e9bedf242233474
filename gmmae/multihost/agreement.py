"""The comparison of a run's processes: they must have the same configuration, versions, code and data.

A process that differs would not fail. It would average its gradients into those of another run.
"""

import json
from collections.abc import Mapping, Sequence

from gmmae.config.schema import Config, flatten
from gmmae.scaling.identity import identity_fields
from gmmae.system.errors import InputError
from gmmae.system.provenance import source_hash, versions

MAX_DIFFERENCES = 3
"""The number of differences that a message names."""

TOGETHER = ("stop.", "parallel.", "checkpoint.", "log.")
"""The sections by which processes decide when to do something together, such as to wait for a checkpoint."""


class DisagreementError(InputError):
    """The processes differ. Every one of them raises this error."""


def program(config: Config) -> dict[str, str]:
    """Returns by name what must be equal before JAX starts: identity, what processes do together, versions, sources."""
    together = {key: value for key, value in flatten(config) if key.startswith(TOGETHER) and key != "parallel.fetch_threads"}
    keys = identity_fields(config) | together
    return {key: json.dumps(value) for key, value in keys.items()} | versions() | {"the sources of gmmae": source_hash()}


def assert_equal(values: Sequence[Mapping[str, str]]) -> None:
    """Compares the values of the processes, which come in their order.

    Raises:
      DisagreementError: something differs; the message names it, the values and the processes.
    """
    names = list(dict.fromkeys(name for one in values for name in one))
    differing = [text for name in names if (text := _difference(name, [one.get(name, "missing") for one in values]))]
    if differing:
        parts = differing[:MAX_DIFFERENCES]
        parts += [f"and {len(differing) - len(parts)} more"] if len(differing) > len(parts) else []
        rule = "all processes must have the same configuration, versions, code and data"
        raise DisagreementError(f"{rule}; got {'; '.join(parts)}")


def _difference(name: str, values: Sequence[str]) -> str:
    """Returns one name's values and the processes that have them, or an empty text where all are equal.

    >>> _difference("jax", ["0.10.2", "0.12.0", "0.10.2"])
    'jax 0.10.2 on processes 0, 2 and 0.12.0 on process 1'
    """
    holders = {value: [i for i, other in enumerate(values) if other == value] for value in values}
    if len(holders) == 1:
        return ""
    parts = [f"{value} on process{'es' * (len(ids) > 1)} {', '.join(map(str, ids))}" for value, ids in holders.items()]
    return f"{name} {' and '.join(parts)}"
