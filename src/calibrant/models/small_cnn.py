"""A small convolutional network, for a study of methods on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from calibrant.core.registry import register
from calibrant.core.samples import Classifier, InputKind, InputShape
from calibrant.models.blocks import convolution
from calibrant.models.network import Network, check_at_least


@register("models", "small_cnn")
@dataclass(frozen=True)
class SmallCNN(Network):
    r"""A small convolutional network that trains in seconds an epoch on a CPU: what `calibrant demo` uses.

    Three pairs of 3x3 convolutions with batch norm and ReLU, the first of a pair with stride 2, of 1, 2 and 4 times
    `width` channels, then the mean over the pixels. It is ours, no published network. From 28x28 images it sees
    maps of 14, 7 and 4. Small as it is, with `ce` it still becomes overconfident once it fits its training set.
    """

    width: int = 16
    reads: ClassVar[tuple[InputKind, ...]] = ("image",)
    smallest: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check_at_least(1, width=self.width)

    def build(self, shape: InputShape, classes: int) -> Classifier:
        return Pairs(shape.size[0], self.width, classes)


class Pairs(Classifier):
    """Pairs of convolutions, each of which halves the image once, and a head."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for outputs in (width, 2 * width, 4 * width):
            layers += [*convolution(channels, outputs, 3, 2), nn.ReLU(inplace=True)]
            layers += [*convolution(outputs, outputs, 3), nn.ReLU(inplace=True)]
            channels = outputs
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def features(self, inputs: Tensor) -> Tensor:
        return torch.mean(self.trunk(inputs), (2, 3))
