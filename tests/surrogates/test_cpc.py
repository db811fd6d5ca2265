"""Pairwise constraints: against loops over the pairs, and in the cases that are known."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.surrogates import CPC
from calibrant.surrogates.cpc import CLASSES, CPU_BLOCK, mean_log_cosh


def batch(n: int, classes: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n * classes)
    logits = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (n,), generator=generator)


def loops(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Both constraints from probabilities, pair by pair."""
    n, k = logits.shape
    won = even = 0.0
    for p, y in zip(logits.softmax(1).tolist(), labels.tolist(), strict=True):
        wrong = [j for j in range(k) if j != y]
        won += sum(-math.log(p[y] / (p[y] + p[j])) for j in wrong) / len(wrong)
        pairs = [(i, j) for i in wrong for j in wrong if i < j]
        for i, j in pairs:
            share = p[i] / (p[i] + p[j])
            even += (-0.5 * math.log(share) - 0.5 * math.log(1 - share) - math.log(2)) / len(pairs)
    return won / n, even / n


@pytest.mark.parametrize("classes", [3, 7, CLASSES + 1, 2 * CLASSES + 5])
def test_both_constraints_are_the_loops(classes: int) -> None:
    data = batch(6, classes)
    won, even = loops(*data)
    assert CPC(1, 0)(*data).item() == pytest.approx(won, rel=1e-12)
    assert CPC(0, 1)(*data).item() == pytest.approx(even, rel=1e-12)
    assert CPC(0.5, 2)(*data).item() == pytest.approx(0.5 * won + 2 * even, rel=1e-12)


def test_two_classes_are_cross_entropy() -> None:
    logits, labels = batch(20, 2)
    assert CPC()(logits, labels).item() == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-12)


def test_exclusion_is_zero_exactly_when_wrong_classes_are_alike() -> None:
    logits, labels = torch.zeros(4, 6, dtype=torch.float64), torch.tensor([0, 2, 3, 5])
    logits[torch.arange(4), labels] = torch.tensor([-3.0, 0, 1, 50], dtype=torch.float64)
    assert CPC(0, 1)(logits, labels).item() == pytest.approx(0, abs=1e-15)
    logits[0, 1] += 0.1
    assert CPC(0, 1)(logits, labels).item() > 1e-5


def test_blocks_do_not_show() -> None:
    """Values, gradients and second derivatives of blocks are those of all pairs at once."""
    k = 3 * CLASSES + 2
    rows = CPU_BLOCK // (CLASSES * k) + 3  # more than one block of rows
    z = batch(rows, k)[0].requires_grad_()
    direction = torch.randn(rows, k, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def plain(values: Tensor) -> Tensor:
        gap = values[:, :, None] - values[:, None, :]
        return (F.softplus(gap, threshold=1e9) - gap / 2 - math.log(2)).sum((1, 2)) / (k * (k - 1))

    for mine, theirs in zip(
        derivatives(mean_log_cosh, z, direction), derivatives(plain, z, direction), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


def derivatives(function: object, z: Tensor, direction: Tensor) -> list[Tensor]:
    assert callable(function)
    value = function(z)
    (grad,) = torch.autograd.grad(value.square().sum(), z, create_graph=True)
    (second,) = torch.autograd.grad((grad * direction).sum(), z)
    return [value.detach(), grad.detach(), second]


def test_far_apart_logits_give_half_the_distance() -> None:
    logits = torch.tensor([[0.0, 1e4, -1e4]])
    assert CPC(0, 1)(logits, torch.tensor([0])).item() == pytest.approx(1e4, rel=1e-4)  # 2e4 / 2 - ln 2
