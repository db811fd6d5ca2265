"""The one adaptive loss: its first state, its update against a slow loop, its limits."""

import math

import pytest
import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.objective import Adaptive, objective
from calibrant.losses import AdaFocal, Focal, InverseFocal


def batch(n: int = 200, k: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, k, generator=g, dtype=torch.float64), torch.randint(k, (n,), generator=g)


def update_by_hand(piece: AdaFocal, state: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """The update as the paper words it, row by row."""
    rows = sorted(
        (float(p.max()), float(p.argmax() == y)) for p, y in zip(logits.softmax(1), labels, strict=True)
    )  # fmt: skip
    base, more = divmod(len(rows), piece.bins)
    upper, gammas, start = [], [], 0
    for b in range(piece.bins):
        group = rows[start : start + base + (b < more)]
        start += len(group)
        gap = sum(conf - correct for conf, correct in group) / len(group)
        gamma = float(state[1, b])
        gamma *= math.exp(piece.rate * (gap if gamma > 0 else -gap))
        if abs(gamma) < piece.switch:
            gamma = -piece.switch if gamma > 0 else piece.switch
        gammas.append(min(max(gamma, piece.low), piece.high))
        upper.append((group[-1][0] + rows[start][0]) / 2 if start < len(rows) else 1.0)
    return torch.tensor([upper, gammas], dtype=torch.float64)


def test_without_a_state_and_before_the_first_update_it_is_focal() -> None:
    logits, labels = batch()
    piece = AdaFocal(2.0)
    expected = Focal(2.0)(logits, labels)
    torch.testing.assert_close(piece(logits, labels), expected)
    torch.testing.assert_close(piece.loss(piece.init(), logits, labels), expected)
    assert isinstance(piece, Adaptive)


@pytest.mark.parametrize("bins", [1, 3, 15])
def test_updates_are_those_of_a_slow_loop(bins: int) -> None:
    piece = AdaFocal(1.0, bins=bins, rate=4.0)
    state = slow = piece.init()
    for epoch in range(6):
        logits, labels = batch(seed=epoch)
        state, slow = piece.update(state, logits, labels), update_by_hand(piece, slow, logits, labels)
        torch.testing.assert_close(state, slow, rtol=1e-9, atol=1e-12)
    assert state.shape == (2, bins)
    assert (state[1].abs() >= piece.switch).all()


def test_rows_take_the_gamma_of_their_bin_and_its_side() -> None:
    piece = AdaFocal(bins=2)
    state = torch.tensor([[0.5, 1.0], [3.0, -1.5]], dtype=torch.float64)
    p = torch.tensor([0.2, 0.5, 0.51, 0.9], dtype=torch.float64)
    logits = torch.stack([p, 1 - p], 1).log().requires_grad_()
    labels = torch.zeros(4, dtype=torch.int64)
    focal, inverse = Focal(3.0).per_sample(logits, labels), InverseFocal(1.5).per_sample(logits, labels)
    expected = torch.cat([focal[:2], inverse[2:]]).mean()  # bins are (l, u]: 0.5 is in the first
    value = piece.loss(state, logits, labels)
    torch.testing.assert_close(value, expected)
    ours, theirs = (torch.autograd.grad(v, logits)[0] for v in (value, expected))
    torch.testing.assert_close(ours, theirs)
    one_hot = torch.stack([torch.ones(4), torch.zeros(4)], 1).double()
    torch.testing.assert_close(piece.loss(state, logits, one_hot), expected)


def test_overconfidence_raises_gamma_and_underconfidence_turns_it_over() -> None:
    logits = torch.tensor([[4.0, 0, 0]], dtype=torch.float64).repeat(30, 1)
    right, wrong = torch.zeros(30, dtype=torch.int64), torch.ones(30, dtype=torch.int64)
    piece = AdaFocal(bins=1, rate=30.0)
    state = piece.init()
    for _ in range(3):
        state = piece.update(state, logits, wrong)
    assert float(state[1, 0]) == piece.high
    for _ in range(40):
        state = piece.update(state, logits, right)
    assert float(state[1, 0]) == piece.low


def test_an_objective_hands_the_state_through() -> None:
    logits, labels = batch()
    both = objective("adafocal(bins=3, rate=5) - 0.1*entropy")
    state = both.update(both.init(), logits, labels)
    piece = AdaFocal(bins=3, rate=5)
    expected = piece.loss(piece.update(piece.init(), logits, labels), logits, labels)
    expected = expected - 0.1 * objective("entropy")(logits, labels)
    torch.testing.assert_close(both.loss(state, logits, labels), expected)
    assert both.adaptive
    assert not objective("focal").adaptive
    assert objective("focal").init() == ()


def test_bad_settings_and_small_validation_sets_get_a_sentence() -> None:
    with pytest.raises(CalibrantError, match="switch must lie above 0"):
        AdaFocal(gamma=0.1)
    with pytest.raises(CalibrantError, match="gamma must not exceed high"):
        AdaFocal(gamma=3.0, high=2.0)
    with pytest.raises(InputError, match="adafocal needs 15 validation rows or more, one a bin, not 14"):
        AdaFocal().update(AdaFocal().init(), *batch(14))
