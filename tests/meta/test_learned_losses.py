"""Learned label smoothing and weight decay: they are the plain methods where what is learned is one number."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.meta import Head
from calibrant.losses import CE, Brier, LabelSmoothing
from calibrant.meta import LearnedLabelSmoothing, LearnedWeightDecay

N, D, K = 16, 5, 4


def batch() -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x, logits = (torch.randn(N, size, generator=g, dtype=torch.float64) for size in (D, K))
    return x, 2 * logits, torch.arange(N) % K


@pytest.mark.parametrize("kind", ["scalar", "class"])
@pytest.mark.parametrize("weight", [None, (0.5, 1.0, 2.0, 3.0)])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_one_epsilon_is_label_smoothing(kind: Any, weight: tuple[float, ...] | None, ignored: int) -> None:
    x, logits, labels = batch()
    piece = LearnedLabelSmoothing(kind, start=0.15)
    given = {"weight": weight, "ignore_index": ignored}
    found = piece.loss(piece.init(x, K), x, logits, labels, base=CE(**given))
    torch.testing.assert_close(found, LabelSmoothing(0.15, **given)(logits, labels), rtol=1e-12, atol=0)
    if ignored < 0:
        soft = logits.softmax(1)
        found = piece.loss(piece.init(x, K), x, logits, soft, base=CE(weight=weight))
        torch.testing.assert_close(
            found, LabelSmoothing(0.15, weight=weight)(logits, soft), rtol=1e-12, atol=0
        )


def test_pairs_with_equal_shares_are_smoothing_over_the_others() -> None:
    x, logits, labels = batch()
    piece = LearnedLabelSmoothing("class-to-class", start=0.15)
    found = piece.loss(piece.init(x, K), x, logits, labels, base=CE())
    torch.testing.assert_close(found, LabelSmoothing(0.15, over="others")(logits, labels), rtol=1e-12, atol=0)


def test_targets_by_hand() -> None:
    x, logits, labels = batch()
    epsilon = torch.tensor([0.0, 0.1, 0.2, 0.4], dtype=torch.float64)
    shares = torch.rand(K, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    phi = {"epsilon": epsilon, "shares": shares}
    piece = LearnedLabelSmoothing("class-to-class")
    total = 0.0
    for row in range(N):
        y = int(labels[row])
        log_p = logits[row].log_softmax(0)
        others = [k for k in range(K) if k != y]
        size = sum(float(shares[y, k]) for k in others)
        total -= (1 - float(epsilon[y])) * float(log_p[y])
        total -= sum(float(epsilon[y] * shares[y, k] / size * log_p[k]) for k in others)
    assert piece.loss(phi, x, logits, labels, base=CE()).item() == pytest.approx(total / N, rel=1e-12)
    assert torch.allclose(piece.targets(phi, K).sum(1), torch.ones(K, dtype=torch.float64))


def test_projection_by_hand() -> None:
    piece = LearnedLabelSmoothing("class-to-class", bound=0.3)
    phi = {
        "epsilon": torch.tensor([-0.1, 0.2, 0.9]),
        "shares": torch.tensor([[5.0, 1.0, 3.0], [-1.0, 2.0, 4.0], [-1.0, -2.0, 7.0]]),
    }
    found = piece.project(phi)
    assert found["epsilon"].tolist() == pytest.approx([0, 0.2, 0.3])
    want = torch.tensor([[0, 0.25, 0.75], [0, 0, 1], [0.5, 0.5, 0]])  # nothing left to share: equal shares
    torch.testing.assert_close(found["shares"], want)


@pytest.mark.parametrize("granularity", ["element", "unit", "layer"])
@pytest.mark.parametrize("biased", [True, False])
def test_one_coefficient_is_l2(granularity: Any, biased: bool) -> None:
    x, logits, labels = batch()
    head = Head(torch.randn(K, D).double(), torch.randn(K).double() if biased else None)
    piece = LearnedWeightDecay(granularity, start=0.03)
    phi = piece.init(x, K)
    sizes = {"element": K * D + K, "unit": K, "layer": 1}
    assert sum(value.numel() for value in phi.values()) == sizes[granularity]
    found = piece.loss(phi, x, logits, labels, base=Brier(), head=head)
    tax = 0.03 * sum(float(each.square().sum()) for each in head.tensors)
    assert found.item() == pytest.approx(Brier()(logits, labels).item() + tax, rel=1e-12)


def test_a_unit_is_a_class() -> None:
    x, logits, labels = batch()
    head = Head(torch.randn(K, D).double(), torch.randn(K).double())
    assert head.bias is not None
    unit, element = LearnedWeightDecay("unit"), LearnedWeightDecay()
    coefficient = torch.randn(K).double()
    spread = {"weight": coefficient[:, None].expand(K, D), "bias": coefficient}
    one = unit.loss({"coefficient": coefficient}, x, logits, labels, base=CE(), head=head)
    two = element.loss(spread, x, logits, labels, base=CE(), head=head)
    torch.testing.assert_close(one, two, rtol=1e-12, atol=0)


def test_coefficients_below_zero() -> None:
    phi = {"coefficient": torch.tensor([-1.0, 2.0])}
    assert LearnedWeightDecay("unit").project(phi)["coefficient"].tolist() == [-1, 2]
    assert LearnedWeightDecay("unit", negative=False).project(phi)["coefficient"].tolist() == [0, 2]


def test_what_is_wrong_gets_a_sentence() -> None:
    x, logits, labels = batch()
    piece = LearnedWeightDecay()
    with pytest.raises(CalibrantError, match=r"acts on the head; pass head=Head\.of\(layer\)"):
        piece.loss(piece.init(x, K), x, logits, labels, base=CE())
    with pytest.raises(CalibrantError, match="start must be"):
        replace(piece, start=-1.0, negative=False)
    for wrong in ({"start": 0.6}, {"start": -0.1}, {"bound": 0.0}, {"bound": 1.5}):
        with pytest.raises(CalibrantError, match="start and bound must keep"):
            LearnedLabelSmoothing(**wrong)
