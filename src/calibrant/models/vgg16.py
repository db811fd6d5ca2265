"""VGG-16 with batch norm, in the form that is usual for CIFAR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from calibrant.core.registry import register
from calibrant.core.samples import Classifier, InputKind, InputShape
from calibrant.models.network import Network, check_at_least

STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""How many times the width, and how many convolutions, before each max-pool."""


@register("models", "vgg16", paper="simonyan2015")
@dataclass(frozen=True)
class VGG16(Network):
    r"""VGG-16 with batch norm for small images: thirteen 3x3 convolutions in five stages, and one linear layer.

    A max-pool halves the map after each stage (an odd side is rounded up, so that 28x28 can be read), the mean over
    what is left, one pixel of a 32x32 image and 2x2 of a 64x64 one, makes 512 features, and the head takes the place
    of the paper's three fully connected layers. With `width` 64 it has 14,728,266 parameters for CIFAR-10, as in the
    usual CIFAR code, 4,224 of which are biases before a batch norm, which takes them away again. Wide and without
    shortcuts, with `ce` it is overconfident.
    *Deviation:* the paper has no batch norm, 4,096-unit layers with dropout before the last, and 138 million
    parameters; some CIFAR code keeps two of 512 units.
    """

    width: int = 64
    reads: ClassVar[tuple[InputKind, ...]] = ("image",)
    smallest: ClassVar[int] = 16

    def __post_init__(self) -> None:
        check_at_least(1, width=self.width)

    def build(self, shape: InputShape, classes: int) -> Classifier:
        return Stages(shape.size[0], self.width, classes)


class Stages(Classifier):
    """Convolutions with batch norm and ReLU, a max-pool after each stage, the mean over the pixels, and a head."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for times, depth in STAGES:
            for _ in range(depth):
                outputs = times * width
                layers += [
                    nn.Conv2d(channels, outputs, 3, padding=1),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(inplace=True),
                ]
                channels = outputs
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def features(self, inputs: Tensor) -> Tensor:
        return torch.mean(self.trunk(inputs), (2, 3))
