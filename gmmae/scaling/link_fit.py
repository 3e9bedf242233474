"""A cluster's links fitted to timed all-reduces, in the terms of `gmmae.scaling.cost`.

A ring or a tree of n devices takes a number of messages times α, plus a number of bytes over β. The fit minimises the squares
of the logarithms of fitted over measured times. So a time that is twice as long counts as much as one that is half as long.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import least_squares, nnls

from gmmae.scaling import cost
from gmmae.scaling.cost import Cluster
from gmmae.system.errors import InputError

ALGORITHMS = {"ring": cost.ring_s, "tree": cost.tree_s}
"""The seconds of an all-reduce, by the name of the algorithm in a cluster's file."""

BETWEEN_ALGORITHMS = 1e-6
"""Relative residuals that differ by less do not tell a ring from a tree. On one number of devices both fit alike."""


MIN_SHARE = 1e-6
"""Smallest share of the times with which α enters the fit, because logarithms have no 0."""

LOWEST = math.log(MIN_SHARE / 1000)
"""Lower bound of the logarithms of the fit's parameters."""


class AllReduceTime(NamedTuple):
    """A timed all-reduce."""

    devices: int
    size_bytes: int  # on each device
    seconds: float


class Link(NamedTuple):
    """A link between two devices, or between two nodes."""

    alpha_s: float  # latency of a message
    beta_bytes_per_s: float  # bandwidth in one direction


class LinkFit(NamedTuple):
    """The links of a cluster, fitted to timed all-reduces."""

    collective: Literal["ring", "tree"]  # the algorithm that fits better
    inside: Link  # between devices of a node
    between: Link | None  # between nodes; None if no time is of several nodes
    worst_residual: float  # the fitted time over the measured one, less 1, of the largest size

    def cluster(self, cluster: Cluster) -> Cluster:
        """Returns the cluster with these links."""
        alpha_inter_s, beta_inter_bytes_per_s = self.between or (None, None)
        return replace(
            cluster,
            collective=self.collective,
            alpha_intra_s=self.inside.alpha_s,
            beta_intra_bytes_per_s=self.inside.beta_bytes_per_s,
            alpha_inter_s=alpha_inter_s,
            beta_inter_bytes_per_s=beta_inter_bytes_per_s,
        )


def fit_links(times: Sequence[AllReduceTime], devices_per_node: int) -> LinkFit:
    """Fits the links inside and between nodes, as a ring and as a tree, and returns the better fit.

    A node of one device has no link inside. It gets the numbers of the link between nodes, which the model then takes.

    Args:
      times: at least two sizes on two or more devices; if some are of several nodes, two sizes of those too.
      devices_per_node: devices of a node. Times on at most as many are of one node.

    Raises:
      InputError: too few sizes, a time that is not positive, or times that do not grow with the size.

    >>> fit = fit_links([AllReduceTime(2, 100, 2.0 + 1.0), AllReduceTime(2, 300, 2.0 + 3.0)], 2)
    >>> fit.collective, round(fit.inside.alpha_s, 6), round(fit.inside.beta_bytes_per_s, 3), fit.between
    ('ring', 1.0, 100.0, None)
    """
    if not all(math.isfinite(time.seconds) and time.seconds > 0 for time in times):
        raise InputError(
            f"seconds of an all-reduce must be positive; got {min(time.seconds for time in times):g}: measure again"
        )
    fits = [_fit_as(collective, times, devices_per_node) for collective in ("ring", "tree")]
    ring, tree = fits
    better = min(fits, key=lambda fit: fit[1])
    return (ring if ring[1] - better[1] < BETWEEN_ALGORITHMS else tree)[0]


def _fit_as(
    collective: Literal["ring", "tree"], times: Sequence[AllReduceTime], devices_per_node: int
) -> tuple[LinkFit, float]:
    """Returns the fit of one algorithm, and its root mean square relative residual."""
    inner = [time for time in times if time.devices <= devices_per_node]
    outer = [time for time in times if time.devices > devices_per_node]
    if not outer and not any(time.devices > 1 for time in inner):
        raise InputError("all-reduces must be timed on two or more devices; got one device: use more")
    if not inner and devices_per_node > 1:
        raise InputError(
            f"all-reduces must also be timed on 2 to {devices_per_node} devices of a node; got none: time them too"
        )
    inside = _link(collective, inner, [time.devices for time in inner], [0.0] * len(inner)) if inner else None
    between = _link_between(collective, outer, devices_per_node, inside) if outer else None
    known = inside or between
    assert known is not None
    fit = LinkFit(collective, known, between, 0.0)
    cluster = fit.cluster(Cluster("", "", devices_per_node, *known))
    errors = [cost.all_reduce_s(cluster, time.devices, time.size_bytes) / time.seconds - 1 for time in times]
    return fit._replace(worst_residual=max(errors, key=abs)), math.sqrt(float(np.mean(np.square(errors))))


def _link_between(collective: str, outer: Sequence[AllReduceTime], devices_per_node: int, inside: Link | None) -> Link:
    """Returns the link between nodes. A ring is flat. A tree spends a part of its time inside the nodes."""
    if collective == "ring":
        return _link(collective, outer, [time.devices for time in outer], [0.0] * len(outer))
    nodes = [math.ceil(time.devices / devices_per_node) for time in outer]
    earlier_s = [cost.tree_s(devices_per_node, time.size_bytes, *inside) if inside else 0.0 for time in outer]
    return _link(collective, outer, nodes, earlier_s)


def _link(collective: str, times: Sequence[AllReduceTime], members: Sequence[int], earlier_s: Sequence[float]) -> Link:
    """Fits one link.

    Args:
      collective: ring or tree.
      times: all-reduces that use the link.
      members: number of devices or nodes that take part in each.
      earlier_s: seconds that each spends elsewhere.
    """
    if len({time.size_bytes for time in times}) < 2:
        raise InputError(f"all-reduces must have at least two different sizes; got {len(times)} times of one: add a size")
    seconds_of, seconds, earlier = ALGORITHMS[collective], np.array([time.seconds for time in times]), np.array(earlier_s)
    messages = [seconds_of(count, time.size_bytes, 1.0, math.inf) for count, time in zip(members, times, strict=True)]
    transfer = [seconds_of(count, time.size_bytes, 0.0, 1.0) for count, time in zip(members, times, strict=True)]
    design = np.stack([messages, transfer], axis=1)
    widths = np.linalg.norm(design / seconds[:, None], axis=0)  # α and 1/β differ by orders of magnitude
    start, _ = nnls(design / seconds[:, None] / widths, 1 - earlier / seconds)
    if not start[1] > 0:
        sizes = ", ".join(str(size) for size in sorted({time.size_bytes for time in times}))
        raise InputError(f"all-reduces must take longer the larger they are; got sizes of {sizes} bytes: add larger ones")

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        return np.log((earlier + design @ (np.exp(logarithms) / widths)) / seconds)

    fitted = least_squares(residuals, np.log(np.maximum(start, MIN_SHARE)), bounds=(LOWEST, np.inf))
    alpha_s, inverse_beta = (float(value) for value in np.exp(fitted.x) / widths)
    return Link(alpha_s, 1 / inverse_beta)
