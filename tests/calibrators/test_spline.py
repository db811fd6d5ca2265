"""Spline calibration: a slow fit by another basis, the limits of few knots, and K = 100 with few rows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline
from scipy.optimize import least_squares
from torch import Tensor

from calibrant.calibrators.spline import Spline
from calibrant.core.calibration import Top
from calibrant.core.errors import CalibrantError

Data = tuple[Tensor, Tensor]


def test_it_is_the_slope_of_a_least_squares_spline(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(200, 3, 3, torch.float64)
    score, predicted = logits.softmax(1).max(1)
    order = score.argsort().numpy()
    s, a = score.numpy()[order], (predicted == labels).double().numpy()[order]
    t, gap, at = np.arange(1, 201) / 200, np.cumsum(a - s) / 200, np.linspace(0, 1, 6)
    heights = least_squares(
        lambda y: CubicSpline(at, y, bc_type="natural")(t) - gap,
        np.zeros(6),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    ).x
    wanted = s + CubicSpline(at, heights, bc_type="natural")(t, 1)
    top = Spline("top").fit(logits, labels)(logits)
    assert isinstance(top, Top)
    # all 200 ranks are kept, so that the map is exact at each
    np.testing.assert_allclose(top.confidence.numpy()[order], wanted.clip(1e-7, 1 - 1e-7), atol=1e-8)


def test_two_knots_add_one_number(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(3000, 4, 3, torch.float64)
    top = Spline("top", knots=2).fit(logits, labels)(logits)
    assert isinstance(top, Top)
    added = (top.confidence - logits.softmax(1).amax(1))[top.confidence > 1e-6]
    torch.testing.assert_close(added, added[:1].expand(len(added)))
    assert float(added[0]) < 0


def test_few_kept_ranks_are_enough(
    draw_overconfident: Callable[..., Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, labels = draw_overconfident(5000, 4, 3, torch.float64)
    few = Spline("top").fit(logits, labels)(logits)
    monkeypatch.setattr("calibrant.calibrators.spline._KEPT", 5000)
    every = Spline("top").fit(logits, labels)(logits)
    assert isinstance(few, Top)
    assert isinstance(every, Top)
    # between kept scores lie 1/256 of the rows at most, over which the slope of so smooth a curve moves by 1e-3
    torch.testing.assert_close(few.confidence, every.confidence, rtol=0, atol=1e-3)


def test_equal_scores_share_their_hits() -> None:
    logits = torch.zeros(10, 4)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3, 3, 0])
    for turned in (torch.arange(10), torch.arange(9, -1, -1)):
        top = Spline("top").fit(logits, labels[turned])(logits)
        assert isinstance(top, Top)
        torch.testing.assert_close(top.confidence, torch.full((10,), 0.4))


def test_it_does_not_destroy_a_model(is_harmless: Callable[[str], bool]) -> None:
    assert is_harmless("spline")


def test_no_such_setting() -> None:
    with pytest.raises(CalibrantError, match="knots of spline"):
        Spline(knots=1)
