"""Converts gmmae's parameters to PyTorch's layout, and back."""

import numpy as np

from benchmarks.peers.problem import Arrays


def from_ours(params: Arrays) -> Arrays:
    """Returns gmmae's parameters by PyTorch's names, kernels features first."""
    converted = {}
    for name, value in params.items():
        layer, kind = name.removeprefix("encoder/").split("/")
        place = layer.replace("Conv_", "convolutions.").replace("Dense_0", "dense")
        if kind == "kernel":
            value = np.moveaxis(value, (-1, -2), (0, 1))
        converted[f"{place}.{'weight' if kind == 'kernel' else 'bias'}"] = np.ascontiguousarray(value)
    return converted


def to_ours(params: Arrays) -> Arrays:
    """Returns the inverse of `from_ours`."""
    converted = {}
    for name, value in params.items():
        *place, kind = name.split(".")
        if kind == "weight":
            value = np.moveaxis(value, (0, 1), (-1, -2))
        layer = {"convolutions": "encoder/Conv_", "dense": "encoder/Dense_0", "heads": "heads"}[place[0]] + "".join(place[1:])
        converted[f"{layer}/{'kernel' if kind == 'weight' else 'bias'}"] = np.ascontiguousarray(value)
    return converted
