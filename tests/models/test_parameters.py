"""Parameter counts: those of the literature, and for every network those of an arithmetic of its own."""

from __future__ import annotations

import pytest
from torch import nn

from calibrant.core.registry import describe
from calibrant.core.samples import InputShape
from calibrant.core.spec import build

CIFAR = InputShape("image", (3, 32, 32))
TINY = InputShape("image", (3, 64, 64))
LARGE = InputShape("image", (3, 224, 224))
TEXT = InputShape("text", (256,), 20_000)


def count(spec: str, shape: InputShape, classes: int) -> int:
    made: nn.Module = build(spec, "models").make(shape, classes)
    return sum(value.numel() for value in made.parameters())


# ResNet-18, -50 and VGG-16 on CIFAR: the counts of the code that most calibration papers start from, where VGG-16 has
# one linear layer, and biases in its convolutions. ImageNet: torchvision's. ResNet-32 and -110 of the CIFAR family:
# 0.46 and 1.7 million in Table 6 of He et al.; option A has no parameters in shortcuts, option B two 1x1 convolutions.
@pytest.mark.parametrize(
    ("spec", "shape", "classes", "published"),
    [
        ("resnet18", CIFAR, 10, 11_173_962),
        ("resnet18", CIFAR, 100, 11_220_132),
        ("resnet18", LARGE, 1000, 11_689_512),
        ("resnet50", CIFAR, 10, 23_520_842),
        ("resnet50", LARGE, 1000, 25_557_032),
        ("resnet32", CIFAR, 10, 464_154),
        ("resnet32(shortcut='projection')", CIFAR, 10, 466_906),
        ("resnet110", CIFAR, 10, 1_730_714),
        ("resnet110(shortcut='identity')", CIFAR, 10, 1_727_962),
        ("vgg16", CIFAR, 10, 14_728_266),
        ("vgg16", CIFAR, 100, 14_774_436),
    ],
)
def test_counts_are_those_of_the_literature(
    spec: str, shape: InputShape, classes: int, published: int
) -> None:
    assert count(spec, shape, classes) == published


def normed(inputs: int, outputs: int, taps: int) -> int:
    """A convolution without bias, and gain and offset of its norm."""
    return inputs * outputs * taps + 2 * outputs


def resnet(depths: tuple[int, ...], width: int, taps: int, classes: int, *, deep: bool, free: bool) -> int:
    """He's tables, layer by layer."""
    total, inputs = normed(3, width, taps), width
    for stage, depth in enumerate(depths):
        own = width * 2**stage
        outputs = 4 * own if deep else own
        for _ in range(depth):
            if deep:
                total += normed(inputs, own, 1) + normed(own, own, 9) + normed(own, outputs, 1)
            else:
                total += normed(inputs, own, 9) + normed(own, own, 9)
            if inputs != outputs and not free:
                total += normed(inputs, outputs, 1)
            inputs = outputs
    return total + (inputs + 1) * classes


def vgg(classes: int) -> int:
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = sum(9 * a * b + b + 2 * b for a, b in zip([3, *widths], widths, strict=False))
    return convolutions + 513 * classes


ORACLE = {
    "resnet18": (CIFAR, 7, resnet((2, 2, 2, 2), 64, 9, 7, deep=False, free=False)),
    "resnet50": (TINY, 200, resnet((3, 4, 6, 3), 64, 9, 200, deep=True, free=False)),
    "resnet32": (TINY, 200, resnet((5, 5, 5), 16, 9, 200, deep=False, free=True)),
    "resnet110": (CIFAR, 100, resnet((18, 18, 18), 16, 9, 100, deep=False, free=False)),
    "vgg16": (TINY, 200, vgg(200)),
    "small_cnn": (
        CIFAR,
        10,
        sum(normed(a, b, 9) for a, b in [(3, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64)])
        + 65 * 10,
    ),
    "mlp": (InputShape("vector", (20,)), 5, (20 * 256 + 512) + (256 * 256 + 512) + 257 * 5),
    # an embedding, six convolutions of three taps with biases and layer norms, batch norm of the features, head
    "text_cnn": (TEXT, 20, 20_000 * 64 + 6 * (3 * 64 * 64 + 64 + 2 * 64) + 2 * 64 + 65 * 20),
}


def test_every_network_has_its_arithmetic() -> None:
    assert set(ORACLE) == {entry.name for entry in describe("models")}


@pytest.mark.parametrize("name", sorted(ORACLE))
def test_counts_are_those_of_the_arithmetic(name: str) -> None:
    shape, classes, expected = ORACLE[name]
    assert count(name, shape, classes) == expected


def test_the_stem_follows_the_size_of_the_image() -> None:
    # only ImageNet's stem has other weights: 7 x 7 in place of 3 x 3
    assert count("resnet18", TINY, 10) == count("resnet18", CIFAR, 10)
    assert count("resnet18", LARGE, 10) - count("resnet18", CIFAR, 10) == (49 - 9) * 3 * 64
