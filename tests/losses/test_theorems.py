r"""Document 001's two theorems, as properties of random logits, and where the proof of the second one slips.

Theorem 1: scaling logits up by t > 1 never lowers the top probability.

Theorem 2: focal >= ce - gamma H. It is true for every gamma >= 0 and every target q, but not by the steps printed
there: step (4), (1 - p)^gamma >= 1 - gamma p, needs gamma >= 1; and steps (6) to (8) call sum |q ln f| the entropy
H(f), which it is not: it is the cross-entropy, so what they prove is focal >= (1 - gamma) ce. Mukhoti et al. bound
sum f |ln f| instead. A proof for all gamma: 1 - (1 - p)^gamma <= -gamma ln(1 - p), and ln p ln(1 - p) <= h(p), the
binary entropy of p (Topsøe 2001), and h(p_k) <= H(p) for each class.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from calibrant.losses import CE, Entropy, Focal

ROUNDING = 1e-12  # relative, of sums of at most 12 numbers in float64

logits_of_a_row = st.lists(st.floats(-30, 30), min_size=2, max_size=12)
gammas = st.floats(0, 12)


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@given(logits_of_a_row, st.floats(1, 20))
def test_theorem_1_scaling_up_raises_the_top_probability(values: list[float], t: float) -> None:
    before, after = row(values).softmax(1).max(), (t * row(values)).softmax(1).max()
    assert after >= before * (1 - ROUNDING)


def bound(values: list[float], target: Tensor, gamma: float) -> tuple[float, float]:
    """Focal loss, and cross-entropy minus gamma times the entropy of the prediction."""
    z = row(values)
    ce, entropy = float(CE()(z, target)), float(Entropy()(z, torch.zeros(1, dtype=torch.int64)))
    return float(Focal(gamma)(z, target)), ce - gamma * entropy


@given(logits_of_a_row, gammas, st.data())
def test_theorem_2_for_labels(values: list[float], gamma: float, data: st.DataObject) -> None:
    label = torch.tensor([data.draw(st.integers(0, len(values) - 1))])
    focal, lower = bound(values, label, gamma)
    assert focal >= lower - ROUNDING * (1 + abs(lower))


@given(logits_of_a_row, gammas, st.data())
def test_theorem_2_for_soft_targets(values: list[float], gamma: float, data: st.DataObject) -> None:
    shares = data.draw(st.lists(st.floats(0, 1), min_size=len(values), max_size=len(values)).filter(sum))
    target = row(shares) / sum(shares)
    focal, lower = bound(values, target, gamma)
    assert focal >= lower - ROUNDING * (1 + abs(lower))


@given(st.floats(1e-9, 1 - 1e-9), gammas)
def test_the_two_inequalities_of_the_proof(p: float, gamma: float) -> None:
    binary_entropy = -p * math.log(p) - (1 - p) * math.log1p(-p)
    assert 1 - (1 - p) ** gamma <= -gamma * math.log1p(-p) + ROUNDING
    assert math.log(p) * math.log1p(-p) <= binary_entropy + ROUNDING


@given(st.floats(1e-9, 1 - 1e-9), st.floats(1, 12))
def test_the_sharper_bound_for_gamma_from_1_on(p: float, gamma: float) -> None:
    """Step (4) for one label: focal >= ce + gamma p ln p, without any entropy of the other classes."""
    assert (1 - p) ** gamma >= 1 - gamma * p - ROUNDING
    z = row([math.log(p), math.log1p(-p)])
    label = torch.tensor([0])
    ce = float(CE()(z, label))
    assert float(Focal(gamma)(z, label)) >= ce + gamma * p * math.log(p) - ROUNDING * (1 + ce)


def test_step_4_of_the_printed_proof_fails_below_gamma_1() -> None:
    p, gamma = 0.5, 0.5
    assert (1 - p) ** gamma < 1 - gamma * p  # 0.707 < 0.75
    focal, lower = bound([0.0, 0.0], torch.tensor([0]), gamma)
    assert lower < focal  # and yet the theorem holds there


def test_steps_6_to_8_of_the_printed_proof_call_cross_entropy_entropy() -> None:
    """At p_y = 0.01, sum |q ln f| = 4.6 and H(f) = 0.056: putting one for the other is no equality, nor a bound."""
    z, label = row([math.log(0.01), math.log(0.99)]), torch.tensor([0])
    printed, entropy = float(CE()(z, label)), float(Entropy()(z, label))
    assert printed == pytest.approx(4.605, abs=1e-3)
    assert entropy == pytest.approx(0.056, abs=1e-3)
    assert printed > entropy
    gamma = 3.0
    assert (1 - gamma) * printed < 0  # what (6) and (7) do prove: nothing, since focal loss is never negative
