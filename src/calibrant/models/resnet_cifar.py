"""He's narrow family for CIFAR: three stages of 16, 32 and 64 channels, 6n + 2 layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from calibrant.core.registry import register
from calibrant.core.samples import Classifier, InputKind, InputShape
from calibrant.models.blocks import ResidualNetwork, Shortcut, convolution
from calibrant.models.network import Network, check_at_least


@register("models", "resnet32", paper="he2016")
@dataclass(frozen=True)
class ResNet32(Network):
    r"""ResNet-32 of the CIFAR family: three stages of five basic blocks; document 002's network for images.

    With `shortcut` "identity" (He's option A, and what document 002's code has: every second pixel, new channels 0) it
    has 464,154 parameters for CIFAR-10; with "projection" (option B: 1x1 convolution) 466,906. So small, it fits
    the training set less well than `resnet18`, and is less overconfident.
    """

    width: int = 16
    shortcut: Shortcut = "identity"
    reads: ClassVar[tuple[InputKind, ...]] = ("image",)
    smallest: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_at_least(1, width=self.width)

    def build(self, shape: InputShape, classes: int) -> Classifier:
        return cifar(shape, self.width, 5, classes, self.shortcut)


@register("models", "resnet110", paper="he2016")
@dataclass(frozen=True)
class ResNet110(Network):
    r"""ResNet-110 of the CIFAR family: three stages of eighteen basic blocks; deep, narrow and overconfident.

    With `shortcut` "projection" (option B: a 1x1 convolution where the shape changes) it has 1,730,714 parameters for
    CIFAR-10, with "identity" (He's option A) 1,727,962; both are what is called 1.7 million. He starts it at a
    learning rate of 0.01, because at 0.1 it may stand still at first.
    *Deviation:* some released calibration code calls a bottleneck network of 3, 4, 26 and 3 blocks ResNet-110.
    """

    width: int = 16
    shortcut: Shortcut = "projection"
    reads: ClassVar[tuple[InputKind, ...]] = ("image",)
    smallest: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_at_least(1, width=self.width)

    def build(self, shape: InputShape, classes: int) -> Classifier:
        return cifar(shape, self.width, 18, classes, self.shortcut)


def cifar(shape: InputShape, width: int, depth: int, classes: int, kind: Shortcut) -> Classifier:
    """The network of 6 `depth` + 2 layers."""
    stem = [*convolution(shape.size[0], width, 3), nn.ReLU(inplace=True)]
    return ResidualNetwork(stem, width, (depth, depth, depth), classes, kind=kind, deep=False)
