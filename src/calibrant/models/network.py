"""What every named network says of itself: which inputs it reads, and how it is built for a shape and K classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from calibrant.core.errors import InputError, SpecError
from calibrant.core.registry import describe, name_of
from calibrant.core.samples import Classifier, InputKind, InputShape

RANK: dict[InputKind, int] = {"image": 3, "text": 1, "vector": 1}


class Network(ABC):
    """The interface of a named network: `make` refuses what the network cannot read, and `build` does the rest.

    Weights are drawn from torch's global generator: convolutions by He's rule, linear layers as torch does.
    """

    reads: ClassVar[tuple[InputKind, ...]]
    smallest: ClassVar[int] = 1
    """The shorter side of an image, the length of a text or vector."""

    @abstractmethod
    def build(self, shape: InputShape, classes: int) -> Classifier:
        """The network for a shape that was checked."""

    def make(self, shape: InputShape, classes: int) -> Classifier:
        """The freshly initialised network for inputs of one shape."""
        check_shape(shape, classes)
        name = name_of(self)
        if shape.kind not in self.reads:
            fit = " or ".join(readers(shape.kind)) or "no network that we have"
            raise InputError(f"{name} reads no {shape.kind} input ({in_words(shape)}); {fit} does")
        side = min(shape.size[1:]) if shape.kind == "image" else shape.size[0]
        if side < self.smallest:
            small = f"has {side} pixels on its shorter side" if shape.kind == "image" else f"is {side} long"
            fit = " or ".join(readers(shape.kind, side)) or "no network that we have"
            raise InputError(f"{name} needs at least {self.smallest}, and an input {small}; {fit} takes it")
        network = self.build(shape, classes)
        he_initialise(network)
        return network


def readers(kind: InputKind, side: int | None = None) -> list[str]:
    """The names of the networks that read a kind of input, of that size if one is given."""
    found: list[str] = []
    for entry in describe("models"):
        reads, smallest = getattr(entry.piece, "reads", ()), getattr(entry.piece, "smallest", 1)
        if kind in reads and (side is None or side >= smallest):
            found.append(entry.name)
    return found


def check_shape(shape: InputShape, classes: int) -> None:
    """Refuse a shape or a number of classes that no network can have."""
    if classes < 2:
        raise InputError(f"a classifier needs at least 2 classes, not {classes}")
    if len(shape.size) != RANK[shape.kind] or min(shape.size) < 1:
        form = {"image": "(C, H, W)", "text": "(L,)", "vector": "(D,)"}[shape.kind]
        raise InputError(f"the size of one {shape.kind} input is {form}, not {shape.size}")
    if shape.kind == "text" and shape.vocabulary < 2:
        raise InputError(
            f"a text needs a vocabulary of at least 2 tokens, not {shape.vocabulary}; 0 is padding"
        )


def in_words(shape: InputShape) -> str:
    """`3 x 32 x 32 pixels`, `400 tokens`, `20 numbers`."""
    unit = {"image": "pixels", "text": "tokens", "vector": "numbers"}[shape.kind]
    return f"{' x '.join(str(length) for length in shape.size)} {unit}"


def he_initialise(network: nn.Module) -> None:
    """Every convolution gets normal weights of variance 2 / fan out (He et al. 2015), and bias 0 where it has one."""
    for module in network.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def check_at_least(least: int, **sizes: int) -> None:
    """Refuse a width or depth that is too small."""
    for name, size in sizes.items():
        if size < least:
            raise SpecError(f"{name} must be at least {least}, not {size}")
