"""ResNet-18 and ResNet-50, with the stem that the size of the images asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from calibrant.core.registry import register
from calibrant.core.samples import Classifier, InputKind, InputShape
from calibrant.models.blocks import ResidualNetwork, convolution
from calibrant.models.network import Network, check_at_least

SMALL, MEDIUM = 36, 96
"""Shorter sides up to which the stem keeps the image (CIFAR), and halves it (Tiny-ImageNet); else it is ImageNet's."""


@register("models", "resnet18", paper="he2016")
@dataclass(frozen=True)
class ResNet18(Network):
    r"""ResNet-18: four stages of two basic blocks, 64 to 512 channels; the usual network of calibration papers.

    The stem goes by the shorter side of the image. Up to 36 pixels (CIFAR): 3x3 convolution, nothing is pooled. Up to
    96 (Tiny-ImageNet): the same with stride 2, so that the stages see 32x32 and an epoch costs what it does on CIFAR.
    Above: He's, 7x7 with stride 2 and 3x3 max-pool. Shortcuts that change shape are 1x1 convolutions (option B).
    With `width` 64 it has 11,173,962 parameters for CIFAR-10 and 11,689,512 for ImageNet. Trained to the end with `ce`
    it is overconfident.
    *Deviation:* on 64x64 images the released focal-loss code keeps the full size, at four times the cost.
    """

    width: int = 64
    reads: ClassVar[tuple[InputKind, ...]] = ("image",)
    smallest: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_at_least(1, width=self.width)

    def build(self, shape: InputShape, classes: int) -> Classifier:
        return ResidualNetwork(
            stem(shape, self.width), self.width, (2, 2, 2, 2), classes, kind="projection", deep=False
        )


@register("models", "resnet50", paper="he2016")
@dataclass(frozen=True)
class ResNet50(Network):
    r"""ResNet-50: four stages of 3, 4, 6 and 3 bottleneck blocks, 256 to 2,048 channels.

    Its stem is chosen as in `resnet18`, and its shortcuts are the same. The stride of a block is at the 3x3
    convolution, which changes no count. With `width` 64 it has 23,520,842 parameters for CIFAR-10 and 25,557,032 for
    ImageNet. Deeper and wider is better in error, and with `ce` more overconfident (Guo et al. 2017).
    """

    width: int = 64
    reads: ClassVar[tuple[InputKind, ...]] = ("image",)
    smallest: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_at_least(1, width=self.width)

    def build(self, shape: InputShape, classes: int) -> Classifier:
        return ResidualNetwork(
            stem(shape, self.width), self.width, (3, 4, 6, 3), classes, kind="projection", deep=True
        )


def stem(shape: InputShape, width: int) -> list[nn.Module]:
    """What stands before the first block."""
    channels, side = shape.size[0], min(shape.size[1:])
    if side <= MEDIUM:
        return [*convolution(channels, width, 3, 1 if side <= SMALL else 2), nn.ReLU(inplace=True)]
    return [*convolution(channels, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
