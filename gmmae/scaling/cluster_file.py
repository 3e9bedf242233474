"""Writes a measured cluster as the TOML file that `gmmae.scaling.cost.read_cluster` reads."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import fields

from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster
from gmmae.scaling.link_fit import AllReduceTime

WIDTH = 128

UNITS = {
    "devices_per_node": "devices used on each node",
    "alpha_intra_s": "seconds of latency of a message between devices of a node",
    "beta_intra_bytes_per_s": "bytes per second between them, in one direction",
    "alpha_inter_s": "seconds of latency of a message between nodes",
    "beta_inter_bytes_per_s": "bytes per second of a node's link, in one direction",
    "reference_step_s": "0: steps count as measured by the plan or the sweep",
    "collective": "the algorithm that fits the times better",
}
"""The comments behind the values of a file."""


def cluster_text(cluster: Cluster, facts: Sequence[str], times: Sequence[AllReduceTime]) -> str:
    r"""Returns the file of a cluster. Its head has the facts, one paragraph each, and a table of the times.

    >>> pair = Cluster("two", "cpu", 2, 1e-5, 1e9, collective="ring")
    >>> print(cluster_text(pair, ["Measured."], [AllReduceTime(2, 1000, 2.2e-5)]))
    # Measured.
    #
    #   devices      bytes   measured, µs     fitted, µs
    #         2       1000             22             21
    <BLANKLINE>
    name = "two"
    device = "cpu"
    devices_per_node = 2  # devices used on each node
    alpha_intra_s = 1e-05  # seconds of latency of a message between devices of a node
    beta_intra_bytes_per_s = 1e+09  # bytes per second between them, in one direction
    reference_step_s = 0  # 0: steps count as measured by the plan or the sweep
    collective = "ring"  # the algorithm that fits the times better
    <BLANKLINE>
    """
    head = [f"# {line}".rstrip() for fact in facts for line in (*textwrap.wrap(fact, WIDTH - 2), "")]
    rows = [f"#   {line}" for line in times_table(cluster, times)]
    keys = []
    for field in fields(Cluster):
        value = getattr(cluster, field.name)
        if value in (None, "") or field.name == "reference_batch":  # its default; there is no reference step
            continue
        comment = f"  # {UNITS[field.name]}" if field.name in UNITS else ""
        keys.append(f"{field.name} = {_value(value)}{comment}")
    return "\n".join([*head, *rows, "", *keys, ""])


def times_table(cluster: Cluster, times: Sequence[AllReduceTime]) -> list[str]:
    """Returns the lines of a table with the measured times and those of the model."""
    lines = [f"{'devices':>7} {'bytes':>10} {'measured, µs':>14} {'fitted, µs':>14}"]
    for time in times:
        fitted_s = cost.all_reduce_s(cluster, time.devices, time.size_bytes)
        lines.append(f"{time.devices:>7} {time.size_bytes:>10} {microseconds(time.seconds):>14} {microseconds(fitted_s):>14}")
    return lines


def microseconds(seconds: float) -> str:
    """Returns a time in microseconds with three digits or more, and never with an exponent for a long time.

    >>> microseconds(1.2345e-8), microseconds(1.2345e-5), microseconds(0.0123456)
    ('0.0123', '12.3', '12346')
    """
    value = 1e6 * seconds
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _value(value: object) -> str:
    """Returns a value as TOML spells it. Numbers have four digits, more than a measurement has."""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
