"""Our parameters as PyTorch lays them out, and back."""

import numpy as np

from benchmarks.peers.problem import Arrays, Problem


def from_ours(params: Arrays, problem: Problem) -> Arrays:
    """Our parameters by the twin's names: kernels features first, and the flattened volume channels first."""
    converted = {}
    for name, value in params.items():
        part, layer, kind = name.split("/")
        place = f"heads.{layer}" if part == "heads" else layer.replace("Conv_", "convolutions.").replace("Dense_0", "dense")
        if kind == "kernel":
            if layer == "Dense_0":
                value = value.reshape(*_flattened(problem), -1).transpose(3, 0, 1, 2, 4).reshape(value.shape)
            value = np.moveaxis(value, (-1, -2), (0, 1))
        converted[f"{place}.{'weight' if kind == 'kernel' else 'bias'}"] = np.ascontiguousarray(value)
    return converted


def to_ours(params: Arrays, problem: Problem) -> Arrays:
    """The inverse of `from_ours`."""
    converted = {}
    for name, value in params.items():
        *place, kind = name.split(".")
        if kind == "weight":
            value = np.moveaxis(value, (0, 1), (-1, -2))
        if place == ["dense"] and kind == "weight":
            z, y, x, channels = _flattened(problem)
            value = value.reshape(channels, z, y, x, -1).transpose(1, 2, 3, 0, 4).reshape(value.shape)
        ours = {"convolutions": "encoder/Conv_", "dense": "encoder/Dense_0", "heads": "heads/"}[place[0]] + "".join(place[1:])
        converted[f"{ours}/{'kernel' if kind == 'weight' else 'bias'}"] = np.ascontiguousarray(value)
    return converted


def _flattened(problem: Problem) -> tuple[int, int, int, int]:
    return (*[problem.edges[-1]] * 3, problem.filters[-1])  # pyright: ignore[reportReturnType]
