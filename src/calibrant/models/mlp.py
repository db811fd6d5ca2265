"""A multilayer perceptron, for vectors and as the simplest network for images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from calibrant.core.registry import register
from calibrant.core.samples import Classifier, InputKind, InputShape
from calibrant.models.network import Network, check_at_least


@register("models", "mlp")
@dataclass(frozen=True)
class MLP(Network):
    r"""A multilayer perceptron: `depth` hidden layers of `width` ReLUs, for vectors and for flattened images.

    A layer is linear, batch norm, ReLU. With `depth` 0 it is logistic regression, whose mean probabilities are those
    of the classes in its training data; width and depth add overconfidence. On images it cannot use that neighbouring
    pixels belong together.
    """

    width: int = 256
    depth: int = 2
    reads: ClassVar[tuple[InputKind, ...]] = ("image", "vector")

    def __post_init__(self) -> None:
        check_at_least(1, width=self.width)
        check_at_least(0, depth=self.depth)

    def build(self, shape: InputShape, classes: int) -> Classifier:
        inputs = 1
        for length in shape.size:
            inputs *= length
        return Perceptron(inputs, self.width, self.depth, classes)


class Perceptron(Classifier):
    """Hidden layers and a head."""

    def __init__(self, inputs: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(inplace=True)]
            inputs = width
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def features(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.hidden(inputs.flatten(1))
        return found
