"""U-Net in PyTorch as a PyTorch user would write it, and the conversion of gmmae's parameters."""

import itertools
import re

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from benchmarks.peers.problem import Arrays

SLOPE = 0.01


class Stage(nn.Module):
    """Two convolutions, each normalised by sample and channel, and activated."""

    def __init__(self, channels: int, features: int):
        super().__init__()
        pairs = ((channels, features), (features, features))
        self.convolutions = nn.ModuleList([nn.Conv2d(*pair, 3, padding=1, bias=False) for pair in pairs])
        self.norms = nn.ModuleList([nn.InstanceNorm2d(features, affine=True) for _ in pairs])

    def forward(self, x):
        """Computes the module's output."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.leaky_relu(norm(convolution(x)), SLOPE)
        return x


class Reference(nn.Module):
    """Module from images (n, y, x) and masks to their mean loss, so that compilation and DDP see the whole step."""

    def __init__(self, features: list[int]):
        super().__init__()
        pairs = list(itertools.pairwise(features))
        ups = pairs[::-1]
        stages = [(1, features[0]), *((coarse, coarse) for _, coarse in pairs), *((2 * fine, fine) for fine, _ in ups)]
        self.stages = nn.ModuleList([Stage(*stage) for stage in stages])
        self.downs = nn.ModuleList([nn.Conv2d(fine, coarse, 2, stride=2) for fine, coarse in pairs])
        self.ups = nn.ModuleList([nn.ConvTranspose2d(coarse, fine, 2, stride=2) for fine, coarse in ups])
        self.last = nn.Conv2d(features[0], 1, 1)

    def forward(self, images, truth, counted):
        """Computes the module's output."""
        logits, target, weight = self.logits(images), truth.to(images.dtype), counted.to(images.dtype)
        found = torch.sigmoid(logits) * weight
        shared, total = (found * target).sum((1, 2)), (found + target * weight).sum((1, 2))
        crossed = (F.softplus(logits) - target * logits) * weight
        return (1 - (2 * shared + 1) / (total + 1) + crossed.sum((1, 2)) / weight.sum((1, 2))).mean()

    def logits(self, images):
        """Returns the logits of each image."""
        x, fine = images.unsqueeze(1), []
        halvings = len(self.downs)
        for stage, down in zip(self.stages[:halvings], self.downs, strict=True):
            fine.append(stage(x))
            x = down(fine[-1])
        x = self.stages[halvings](x)
        for stage, up in zip(self.stages[halvings + 1 :], self.ups, strict=True):
            x = stage(torch.cat([up(x), fine.pop()], dim=1))
        return self.last(x).squeeze(1)


_NAMES = (
    (r"Stage_(\d+)/Conv_(\d+)/kernel", r"stages.\1.convolutions.\2.weight"),
    (r"Stage_(\d+)/Norm_(\d+)/scale", r"stages.\1.norms.\2.weight"),
    (r"Stage_(\d+)/Norm_(\d+)/bias", r"stages.\1.norms.\2.bias"),
    (r"Down_(\d+)/Linear_0/kernel", r"downs.\1.weight"),
    (r"Down_(\d+)/Linear_0/bias", r"downs.\1.bias"),
    (r"Up_(\d+)/Linear_0/kernel", r"ups.\1.weight"),
    (r"Up_(\d+)/bias", r"ups.\1.bias"),
    (r"Linear_0/kernel", r"last.weight"),
    (r"Linear_0/bias", r"last.bias"),
)


def from_ours(params: Arrays) -> Arrays:
    """Returns gmmae's parameters by PyTorch's names, kernels features first. gmmae's 2 × 2 blocks are matrices."""
    converted = {}
    for name, value in params.items():
        [theirs] = [re.sub(pattern, to, name) for pattern, to in _NAMES if re.fullmatch(pattern, name)]
        match theirs.split(".")[0], value.ndim:
            case "stages", 4:
                value = value.transpose(3, 2, 0, 1)
            case "downs", 2:
                value = value.reshape(2, 2, -1, value.shape[1]).transpose(3, 2, 0, 1)
            case "ups", 2:
                value = value.reshape(len(value), 2, 2, -1).transpose(0, 3, 1, 2)
            case "last", 2:
                value = value.T[..., None, None]
        converted[theirs] = np.ascontiguousarray(value)
    return converted


def to_ours(params: Arrays) -> Arrays:
    """Returns the inverse of `from_ours`."""
    converted = {}
    for name, value in params.items():
        [ours] = [back for back in map(_our_name, _NAMES, [name] * len(_NAMES)) if back]
        match name.split(".")[0], value.ndim:
            case "stages", 4:
                value = value.transpose(2, 3, 1, 0)
            case "downs", 4:
                value = value.transpose(2, 3, 1, 0).reshape(-1, len(value))
            case "ups", 4:
                value = value.transpose(0, 2, 3, 1).reshape(len(value), -1)
            case "last", 4:
                value = value[:, :, 0, 0].T
        converted[ours] = np.ascontiguousarray(value)
    return converted


def _our_name(names: tuple[str, str], theirs: str) -> str:
    """Returns gmmae's name for PyTorch's by one pair of `_NAMES`, or "" if the pair does not match.

    >>> _our_name(_NAMES[0], "stages.3.convolutions.1.weight")
    'Stage_3/Conv_1/kernel'
    """
    ours, pattern = names
    found = re.fullmatch(re.sub(r"\\\d", r"(\\d+)", pattern.replace(".", r"\.")), theirs)
    if not found:
        return ""
    numbers = iter(found.groups())
    return re.sub(r"\(\\d\+\)", lambda _: next(numbers), ours)
