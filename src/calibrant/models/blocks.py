"""The residual blocks of He et al., and their trunk: a stem, stages of blocks, the mean over the image."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.core.samples import Classifier

Shortcut = Literal["identity", "projection"]


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size up to its stride, and its batch norm, which makes a bias idle."""
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Subsample(nn.Module):
    """He's shortcut A, without parameters: every second pixel, and zeros for the channels that are new."""

    def __init__(self, new: int, stride: int) -> None:
        super().__init__()
        self.new, self.stride = new, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))


class Residual(nn.Module):
    """ReLU(branch(x) + shortcut(x))."""

    def __init__(self, branch: list[nn.Module], shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*branch)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(self.branch(x) + self.shortcut(x))


def shortcut(kind: Shortcut, inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity where the shape stays; else subsampled with zeros (A), or a 1x1 convolution (B)."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if kind == "identity":
        return Subsample(outputs - inputs, stride)
    return nn.Sequential(*convolution(inputs, outputs, 1, stride))


def basic(inputs: int, width: int, stride: int, kind: Shortcut) -> Residual:
    """Two 3x3 convolutions."""
    branch = [
        *convolution(inputs, width, 3, stride),
        nn.ReLU(inplace=True),
        *convolution(width, width, 3),
    ]
    return Residual(branch, shortcut(kind, inputs, width, stride))


def bottleneck(inputs: int, width: int, stride: int, kind: Shortcut) -> Residual:
    """1x1 down to the width, 3x3 with the stride, 1x1 up to four times the width."""
    branch = [
        *convolution(inputs, width, 1),
        nn.ReLU(inplace=True),
        *convolution(width, width, 3, stride),
        nn.ReLU(inplace=True),
        *convolution(width, 4 * width, 1),
    ]
    return Residual(branch, shortcut(kind, inputs, 4 * width, stride))


class ResidualNetwork(Classifier):
    """Stem, stages that each halve the image and double the width (but the first), mean over the pixels, head."""

    def __init__(
        self,
        stem: list[nn.Module],
        width: int,
        depths: tuple[int, ...],
        classes: int,
        *,
        kind: Shortcut,
        deep: bool,
    ) -> None:
        super().__init__()
        block, growth = (bottleneck, 4) if deep else (basic, 1)
        blocks, inputs = [], width
        for stage, depth in enumerate(depths):
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(inputs, width << stage, stride, kind))
                inputs = growth * (width << stage)
        self.trunk = nn.Sequential(*stem, *blocks)
        self.head = nn.Linear(inputs, classes)

    def features(self, inputs: Tensor) -> Tensor:
        return torch.mean(self.trunk(inputs), (2, 3))
