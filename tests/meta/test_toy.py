"""A problem with a known answer: labels are noisy on the left half of the plane and clean on the right.

A head on many random features fits the noise of 200 training rows, so it is too sure on the left and, held back by the
same focal loss, not sure enough on the right. Held-out rows see that: gamma should rise on the left and fall on the
right, and labels that are noisy should be smoothed more than labels that are not.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.core.objective import objective
from calibrant.meta import (
    Head,
    MetaRegularizer,
    Rows,
    descent,
    hypergradient,
    meta_regularizer,
    moved,
    remember,
)

SEEDS = range(5)


def draw(n: int, generator: torch.Generator, sides: int, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """Points, labels, and which are on the left. With two sides, the right half has two classes of its own."""
    x = torch.rand(n, 2, generator=generator) * 2 - 1
    labels, left = ((4 * x[:, 1]).sin() > 0).long(), x[:, 0] < 0
    flipped = left & (torch.rand(n, generator=generator) < noise)
    labels = torch.where(flipped, 1 - labels, labels)
    return x, torch.where(left, labels, labels + 2 * (sides - 1)), left


def learned(
    spec: str, base: str, seed: int, *, sides: int = 1, width: int = 100, noise: float = 0.4, steps: int = 200
) -> tuple[MetaRegularizer, dict[str, Tensor], Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    frequency, phase = 4 * torch.randn(2, width, generator=g), 6.28 * torch.rand(width, generator=g)

    def features(x: Tensor) -> Tensor:
        halves = torch.stack([x[:, 0] < 0, x[:, 0] >= 0], 1).float()
        return torch.cat([0.3 * (x @ frequency + phase).cos(), 3 * halves], 1)

    (x, y, _), (x_held, y_held, _), (x_new, _, left) = (draw(n, g, sides, noise) for n in (200, 1000, 4000))
    train, held = Rows(features(x), y), Rows(features(x_held), y_held)
    layer = nn.Linear(width + 2, 2 * sides)
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(layer.parameters(), 0.3, momentum=0.9)
    piece, goal, loss = meta_regularizer(spec), objective("ce"), objective(base)
    phi = piece.init(train.features, 2 * sides, seed=seed)
    memory = remember(piece, phi)
    for _ in range(steps):
        rule = descent(piece, optimizer, layer)
        found = hypergradient(
            piece, phi, Head.of(layer), train, held, base=loss, objective=goal, descent=rule
        )
        phi, memory = moved(piece, phi, found.phi, memory)
        optimizer.zero_grad()
        piece.loss(phi, train.features, layer(train.features), y, base=loss).backward()
        optimizer.step()
    return piece, phi, features(x_new), left


@pytest.mark.parametrize("more", ["", ", bound=5"])
def test_gamma_is_larger_where_labels_are_noisy(more: str) -> None:
    found: list[Any] = []
    for seed in SEEDS:
        piece, phi, features, left = learned(f"gamma_net(temperature=1, lr=0.01{more})", "focal", seed)
        _, gamma = piece.watched(phi, features)
        found.append((gamma[left].mean().item(), gamma[~left].mean().item()))
    assert all(noisy > clean for noisy, clean in found), found
    ratios = sorted(noisy / clean for noisy, clean in found)
    assert ratios[2] > 1.3, found  # in the middle of five seeds well apart


def test_noisy_labels_are_smoothed_more() -> None:
    """Four classes: labels 0 and 1 are noisy, 2 and 3 are not."""
    found = []
    for seed in SEEDS:
        _, phi, _, _ = learned(
            'label_smoothing(kind="class", lr=0.01)', "ce", seed, sides=2, width=300, steps=300
        )
        epsilon = phi["epsilon"]
        found.append((epsilon[:2].mean().item(), epsilon[2:].mean().item()))
    assert all(noisy > clean for noisy, clean in found), found
