"""Every registered network: its shape, its split into features and head, its gradients, its seeds, what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError, SpecError
from calibrant.core.registry import Entry, describe
from calibrant.core.samples import Classifier, InputShape
from calibrant.core.spec import build, canonical

ENTRIES = describe("models")
SHAPES = {
    "cifar": InputShape("image", (3, 32, 32)),
    "tiny-imagenet": InputShape("image", (3, 64, 64)),
    "grey": InputShape("image", (1, 28, 28)),
    "text": InputShape("text", (21,), 50),
    "vector": InputShape("vector", (7,)),
}
NARROW = {"resnet18": 8, "resnet50": 8, "resnet32": 4, "resnet110": 4, "vgg16": 8}
"""Widths at which the arithmetic of a test is quick; what is tested does not depend on them."""

each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
each_case = pytest.mark.parametrize(
    ("entry", "shape"),
    [
        pytest.param(entry, shape, id=f"{entry.name}-{name}")
        for entry in ENTRIES
        for name, shape in SHAPES.items()
        if shape.kind in entry.piece.reads  # type: ignore[attr-defined]
    ],
)


def network(entry: Entry, shape: InputShape, classes: int = 3, seed: int = 0) -> Classifier:
    torch.manual_seed(seed)
    width = NARROW.get(entry.name)
    spec = entry.name if width is None else f"{entry.name}(width={width})"
    made = build(spec, "models").make(shape, classes)
    assert isinstance(made, Classifier)
    return made


def batch(shape: InputShape, rows: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if shape.kind == "text":
        return torch.randint(0, shape.vocabulary, (rows, *shape.size), generator=generator).int()
    return torch.randn(rows, *shape.size, generator=generator)


def first_shape(entry: Entry) -> InputShape:
    return next(shape for shape in SHAPES.values() if shape.kind in entry.piece.reads)  # type: ignore[attr-defined]


@each_case
def test_logits_are_the_head_of_the_features(entry: Entry, shape: InputShape) -> None:
    made = network(entry, shape, classes=11).eval()
    with torch.no_grad():
        features, logits = made.features(batch(shape)), made(batch(shape))
    assert logits.shape == (4, 11)
    assert features.shape == (4, made.head.in_features)
    assert torch.equal(logits, made.head(features))
    torch.testing.assert_close(logits, features @ made.head.weight.T + made.head.bias)


@each_entry
def test_gradient_reaches_every_parameter(entry: Entry) -> None:
    made = network(entry, first_shape(entry)).train()
    # what stands behind a gain that starts at 0 (text_cnn) has a gradient from the second step on
    for _ in range(2):
        made.zero_grad()
        nn.functional.cross_entropy(made(batch(first_shape(entry), 8)), torch.arange(8) % 3).backward()
        with torch.no_grad():
            for value in made.parameters():
                assert value.grad is not None
                value -= 0.1 * value.grad
    still = [name for name, value in made.named_parameters() if not bool((value.grad != 0).any())]
    assert still == []


@each_entry
def test_a_seed_gives_the_weights(entry: Entry) -> None:
    shape = first_shape(entry)
    one, two, other = (network(entry, shape, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert not all(torch.equal(value, other[name]) for name, value in one.items())


@each_entry
def test_rows_do_not_see_each_other_when_predicting(entry: Entry) -> None:
    shape = first_shape(entry)
    made = network(entry, shape).eval()
    with torch.no_grad():
        whole = made(batch(shape))
        # convolutions may sum in another order at another batch size
        torch.testing.assert_close(made(batch(shape)[2:3]), whole[2:3], rtol=1e-4, atol=1e-5)


@each_entry
def test_convolutions_start_by_the_rule_of_he(entry: Entry) -> None:
    made = network(entry, first_shape(entry))
    found = [module for module in made.modules() if isinstance(module, nn.Conv1d | nn.Conv2d)]
    for module in found:
        if module.weight.numel() > 2000:
            fan_out = module.weight[:, 0].numel()
            # a standard deviation of n numbers has the error 1 / sqrt(2 n), here 1.6 %
            assert float(module.weight.detach().std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.08)
        assert module.bias is None or not bool(module.bias.any())
    assert found or entry.name == "mlp"


@each_entry
def test_other_kinds_of_input_are_refused(entry: Entry) -> None:
    reads: tuple[str, ...] = entry.piece.reads  # type: ignore[attr-defined]
    for shape in SHAPES.values():
        if shape.kind not in reads:
            with pytest.raises(InputError, match=f"^{entry.name} reads no {shape.kind} input .*; .* does$"):
                build(entry.name, "models").make(shape, 3)


@each_entry
def test_the_smallest_input_is_read_and_a_smaller_one_refused(entry: Entry) -> None:
    smallest: int = entry.piece.smallest  # type: ignore[attr-defined]
    shape = first_shape(entry)
    least = InputShape(shape.kind, (3, smallest, smallest) if shape.kind == "image" else (smallest,), 50)
    assert network(entry, least).eval()(batch(least)).shape == (4, 3)
    if smallest > 1:
        small = InputShape("image", (3, 64, smallest - 1))
        with pytest.raises(InputError, match=f"{entry.name} needs at least {smallest}, and an input has"):
            build(entry.name, "models").make(small, 3)


@each_entry
def test_sizes_that_make_no_network_are_refused(entry: Entry) -> None:
    with pytest.raises(SpecError, match="width must be at least 1, not 0"):
        build(f"{entry.name}(width=0)", "models")
    with pytest.raises(InputError, match="at least 2 classes, not 1"):
        build(entry.name, "models").make(first_shape(entry), 1)
    spec = canonical(build(entry.name, "models"))
    assert canonical(build(spec, "models")) == spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mlp(depth=-1)", "depth must be at least 0, not -1"),
        ("text_cnn(dropout=1)", "dropout is a probability below 1, not 1"),
        ("text_cnn(drop_words=-0.1)", "drop_words is a probability below 1, not -0.1"),
        ("resnet32(shortcut='cubic')", "'identity' or 'projection'"),
    ],
)
def test_other_wrong_parameters_are_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build(spec, "models")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (InputShape("image", (3, 32)), r"the size of one image input is \(C, H, W\)"),
        (InputShape("text", (0,), 50), r"the size of one text input is \(L,\)"),
        (InputShape("text", (5,)), "vocabulary of at least 2 tokens, not 0"),
    ],
)
def test_shapes_that_nothing_has_are_refused(shape: InputShape, message: str) -> None:
    name = "text_cnn" if shape.kind == "text" else "resnet18"
    with pytest.raises(InputError, match=message):
        build(name, "models").make(shape, 3)
