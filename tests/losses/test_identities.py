"""Limits in which one loss is another, and where the shapes that the documentation claims are so."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.objective import objective
from calibrant.core.pointwise import modulated
from calibrant.losses import (
    CE,
    DualFocal,
    Entropy,
    Focal,
    InverseFocal,
    LabelSmoothing,
    LogitNorm,
    LpNorm,
    MbLS,
)
from calibrant.losses.focal import MONOTONE, flsd_gamma
from calibrant.losses.mbls import by_kernel, by_passes


def batch(n: int = 40, k: int = 6, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(11)
    logits = spread * torch.randn(n, k, generator=g, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(k, (n,), generator=g)


IS_CE = [
    "focal(gamma=0)", "focal(gamma=0, detach=True)", "inverse_focal(gamma=0)", "dual_focal(gamma=0)",
    "inverse_focal(gamma=0, detach=True)", "label_smoothing(epsilon=0)", "label_smoothing(epsilon=0, over=\"others\")",
    "mbls(alpha=0)", "mbls(margin=1000)", "ce + 0*lp_norm(p=1)", "ce - 0*entropy",
]  # fmt: skip


@pytest.mark.parametrize("spec", IS_CE)
def test_it_is_cross_entropy(spec: str) -> None:
    logits, labels = batch()
    for n in (len(labels), 1):
        value, expected = objective(spec)(logits[:n], labels[:n]), CE()(logits[:n], labels[:n])
        torch.testing.assert_close(value, expected, rtol=1e-14, atol=0)
        ours, theirs = (torch.autograd.grad(v, logits, create_graph=False)[0] for v in (value, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


def test_smoothing_by_one_forgets_the_labels() -> None:
    logits, labels = batch()
    loss = LabelSmoothing(1.0)
    torch.testing.assert_close(loss(logits, labels), loss(logits, (labels + 1) % 6), rtol=1e-13, atol=0)


def test_smoothing_over_the_others_is_smoothing_by_more() -> None:
    logits, labels = batch()
    torch.testing.assert_close(
        LabelSmoothing(0.1, "others")(logits, labels),
        LabelSmoothing(0.12)(logits, labels),
        rtol=1e-13,
        atol=0,
    )


def test_label_smoothing_is_linear_in_epsilon_below_0_too() -> None:
    logits, labels = batch()
    zero, up, down = (LabelSmoothing(e)(logits, labels) for e in (0.0, 0.3, -0.3))
    torch.testing.assert_close(up + down, 2 * zero, rtol=1e-13, atol=0)


def test_mbls_without_margin_pulls_every_logit_to_the_top() -> None:
    logits, _ = batch()
    distance = logits.amax(1, keepdim=True) - logits
    torch.testing.assert_close(MbLS(0.0).excess(logits), distance.sum(1))
    torch.testing.assert_close(MbLS(2.0, over="mean").excess(logits), MbLS(2.0).excess(logits) / 6)


@pytest.mark.parametrize("way", [by_passes, by_kernel])
@pytest.mark.parametrize("margin", [0.0, 2.0])
def test_both_ways_to_what_lies_beyond_the_margin(way: Callable[..., Any], margin: float) -> None:
    """A CPU takes passes and a GPU one kernel; both are the definition, written out, and 0 in ignored rows."""
    logits, _ = batch()
    z, upstream = logits.detach().clone(), torch.linspace(-1, 2, len(logits), dtype=torch.float64)
    z[0, 2] = -torch.inf  # in an ignored row nothing matters
    ignored = torch.arange(len(z)) % 3 == 0
    rows, vjp = way(z, margin, ignored)
    slopes = torch.zeros_like(z)
    for i, row in enumerate(z.tolist()):
        top = max(row)
        beyond = [top - value - margin for value in row if not ignored[i] and top - value > margin]
        assert float(rows[i]) == pytest.approx(sum(beyond) / 6, rel=1e-14)  # sums of 6
        for k, value in enumerate(row):
            share = len(beyond) if value == top else -1.0 if top - value > margin else 0.0
            slopes[i, k] = 0.0 if ignored[i] else share * upstream[i] / 6
    for _ in range(2):  # a graph that is kept is walked twice
        torch.testing.assert_close(vjp(upstream), slopes, rtol=1e-14, atol=1e-16)


def test_logit_norm_of_long_logits_is_cross_entropy_of_their_direction() -> None:
    logits, labels = batch()
    unit = logits / logits.norm(dim=1, keepdim=True)
    torch.testing.assert_close(LogitNorm(0.5)(logits, labels), CE()(unit / 0.5, labels), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        LogitNorm()(logits, labels), LogitNorm()(9 * logits, labels), rtol=1e-5, atol=0
    )
    (gradient,) = torch.autograd.grad(LogitNorm()(logits, labels), logits)
    assert (gradient * logits).sum(
        1
    ).abs().max() < 1e-6  # 1e-7 in the denominator keeps it from being exactly 0


def test_dual_focal_is_focal_where_the_label_is_last() -> None:
    logits, _ = batch()
    labels = logits.argmin(1)
    torch.testing.assert_close(DualFocal(3.0)(logits, labels), Focal(3.0)(logits, labels), rtol=1e-12, atol=0)


def test_dual_focal_looks_only_below_the_label() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.3, 0.6], [0.1, 0.6, 0.3]], dtype=torch.float64))
    rows = DualFocal(2.0).per_sample(logits, torch.tensor([1, 1]))
    expected = [-((1 - 0.3 + 0.1) ** 2) * math.log(0.3), -((1 - 0.6 + 0.3) ** 2) * math.log(0.6)]
    assert rows.tolist() == pytest.approx(expected, rel=1e-12)
    tie = DualFocal(2.0).per_sample(torch.zeros(1, 3, dtype=torch.float64), torch.tensor([1]))
    assert float(tie) == pytest.approx(
        (2 / 3) ** 2 * math.log(3), rel=1e-12
    )  # strictly below: no rival in a tie


@pytest.mark.parametrize("gamma", [0.5, 1.0, 1.5, 2.0, 5.0])
@pytest.mark.parametrize("detach", [False, True])
def test_the_gradient_of_dual_focal_by_hand_is_that_of_its_definition(gamma: float, detach: bool) -> None:
    logits, labels = batch(60, 4)
    with torch.no_grad():
        logits[:3] *= 100  # certain rows
        logits[3, 1] = logits[3, 0]  # a tie, and a masked class
        logits[4, 2] = -torch.inf
    labels[3:6] = torch.tensor([0, 1, -100])
    upstream = torch.linspace(-1, 2, len(logits), dtype=torch.float64)
    rows = DualFocal(gamma, detach_rival=detach).per_sample(logits, labels)
    by_hand, again = (torch.autograd.grad(rows, logits, upstream, retain_graph=True)[0] for _ in range(2))
    (plain,) = torch.autograd.grad(rows, logits, upstream, create_graph=True)
    torch.testing.assert_close(by_hand, plain, rtol=1e-10, atol=1e-13)  # sums of a few terms of size 1
    assert torch.equal(by_hand, again)  # a graph that is kept is walked twice
    assert not by_hand[5].any()


@pytest.mark.parametrize("piece", [Focal, InverseFocal])
def test_detached_is_the_factor_times_the_gradient_of_cross_entropy(piece: type[Focal]) -> None:
    logits, labels = batch(1)
    p = float(logits.detach().softmax(1)[0, labels[0]])
    factor = (1 - p) ** 2.5 if piece is Focal else (1 + p) ** 2.5
    (ours,) = torch.autograd.grad(piece(2.5, detach=True)(logits, labels), logits)
    (ce,) = torch.autograd.grad(CE()(logits, labels), logits)
    torch.testing.assert_close(ours, factor * ce, rtol=1e-12, atol=1e-16)


def slope(loss: Focal | InverseFocal, p: float) -> float:
    """The gradient with respect to the label's logit, as a multiple of that of cross-entropy."""
    z = torch.tensor([[math.log(p / (1 - p)), 0.0]], dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(loss(z, torch.tensor([0])), z)
    return float(ours[0, 0]) / (p - 1)


def test_focal_gradients_that_the_docs_quote() -> None:
    assert slope(Focal(3), 0.1) == pytest.approx(1.29, abs=5e-3)
    assert slope(Focal(3, detach=True), 0.1) == pytest.approx(0.73, abs=5e-3)
    assert min(slope(InverseFocal(3), p / 100) for p in range(1, 100)) == pytest.approx(0.33, abs=5e-3)


def test_inverse_focal_stops_falling_at_the_stated_gamma() -> None:
    ps = [0.2 + i / 1e4 for i in range(2000)]
    assert min(slope(InverseFocal(MONOTONE - 1e-3), p) for p in ps) > 0
    with pytest.warns(UserWarning, match="rises with p somewhere, so it pulls some right rows down"):
        beyond = InverseFocal(round(MONOTONE + 1e-3, 4))
    assert min(slope(beyond, p) for p in ps) < 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert min(slope(InverseFocal(9, detach=True), p) for p in ps) > 1


@given(st.floats(0.02, 0.48))
def test_flsd_gamma_solves_its_equation(p: float) -> None:
    gamma = flsd_gamma(p)
    assert gamma > 0
    assert (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * math.log(p) == pytest.approx(1, abs=1e-9)


def test_flsd_53_is_the_rule_at_two_places_rounded() -> None:
    assert round(flsd_gamma(0.2)) == 5
    assert round(flsd_gamma(0.25)) == 3
    assert slope(Focal(flsd_gamma(0.2)), 0.2) == pytest.approx(1, abs=1e-9)
    logits = torch.log(torch.tensor([[0.19999, 0.80001], [0.20001, 0.79999]], dtype=torch.float64))
    labels = torch.zeros(2, dtype=torch.int64)
    rows = objective("flsd53").per_sample(logits, labels)
    torch.testing.assert_close(rows[0], Focal(5).per_sample(logits, labels)[0])
    torch.testing.assert_close(rows[1], Focal(3).per_sample(logits, labels)[1])
    with pytest.raises(CalibrantError, match=r"between 0 and 0\.5"):
        flsd_gamma(0.5)


def test_norms() -> None:
    logits, labels = batch()
    torch.testing.assert_close(LpNorm(1)(logits, labels), logits.abs().sum(1).mean())
    torch.testing.assert_close(LpNorm(2)(logits, labels), logits.square().sum(1).sqrt().mean())
    torch.testing.assert_close(LpNorm(3.5)(logits, labels), (logits.abs() ** 3.5).sum(1).pow(1 / 3.5).mean())
    torch.testing.assert_close(LpNorm(400.0)(logits, labels), logits.abs().amax(1).mean(), rtol=1e-2, atol=0)


def test_entropy_of_the_uniform_and_of_the_certain() -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    assert float(Entropy()(torch.zeros(2, 7), labels)) == pytest.approx(math.log(7))
    assert float(Entropy()(torch.tensor([[900.0, 0, 0], [0, 900, 0]]), labels)) == 0
    assert float(Entropy("mean")(torch.zeros(2, 7), labels)) == pytest.approx(math.log(7) / 7)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 1.5, 2.0, 5.0])
@pytest.mark.parametrize("inverse", [False, True])
def test_gamma_may_be_a_tensor_with_a_gradient(gamma: float, inverse: bool) -> None:
    nll = torch.tensor([0.0, 1e-12, 0.1, 1.0, 30.0], dtype=torch.float64, requires_grad=True)
    learned = torch.full_like(nll, gamma).requires_grad_()
    value = modulated(nll, learned, inverse)
    fixed = modulated(nll, gamma, inverse)
    torch.testing.assert_close(value, fixed, rtol=1e-12, atol=1e-300)
    by_nll, by_gamma = torch.autograd.grad(value.sum(), (nll, learned), create_graph=True)
    torch.testing.assert_close(by_nll, torch.autograd.grad(fixed.sum(), nll)[0], rtol=1e-10, atol=1e-30)
    p = torch.exp(-nll)
    base = 1 + p if inverse else -torch.expm1(-nll)
    expected = torch.where(nll == 0, 0, base**gamma * base.clamp_min(1e-300).log() * nll)
    torch.testing.assert_close(by_gamma, expected, rtol=1e-10, atol=1e-14)  # ln(1 - p) where p is 1e-13
    (second,) = torch.autograd.grad(by_gamma.sum(), nll)
    assert second.isfinite().all()
    mixed = modulated(nll, learned.detach(), torch.tensor([inverse, not inverse, inverse, inverse, inverse]))
    torch.testing.assert_close(mixed[2:], fixed[2:], rtol=1e-12, atol=0)
