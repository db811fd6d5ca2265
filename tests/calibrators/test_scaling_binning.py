"""Scaling, then binning: averages of scaled outputs, the scaler as a limit, K = 100 with few rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant.calibrators.scaling_binning import ScalingBinning
from calibrant.calibrators.temperature import Temperature
from calibrant.core.calibration import Top
from calibrant.core.errors import CalibrantError

Data = tuple[Tensor, Tensor]


def test_the_bins_average_the_scaled_outputs(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(103, 4, 3, torch.float64)
    scaled = Temperature().fit(logits, labels)(logits)
    top = ScalingBinning(5, "top").fit(logits, labels)(logits)
    assert isinstance(scaled, Tensor)
    assert isinstance(top, Top)
    assert torch.equal(top.predicted, logits.argmax(1))
    order = scaled.softmax(1).amax(1).argsort()
    ordered, start = scaled.softmax(1).amax(1)[order], 0
    for size in (21, 21, 21, 20, 20):  # equal mass: the first N mod bins groups have one row more
        group = slice(start, start + size)
        wanted = ordered[group].mean()
        torch.testing.assert_close(top.confidence[order][group], wanted.expand(size))
        start += size


def test_a_full_vector_has_few_values_with_equal_expected_hits(
    draw_overconfident: Callable[..., Data],
) -> None:
    logits, labels = draw_overconfident(2000, 10, 3, torch.float64)
    fitted = ScalingBinning(8).fit(logits, labels)
    scaled = Temperature().fit(logits, labels)(logits)
    assert isinstance(scaled, Tensor)
    probs = scaled.softmax(1)
    place = torch.bucketize(probs, fitted.state["edges"][0])
    for b in range(8):
        assert float(probs[place == b].sum()) == pytest.approx(
            2000 / 8, rel=0.01
        )  # a score is less than 1 of 250
        assert float(probs[place == b].mean()) == pytest.approx(
            float(fitted.state["levels"][0, b]), abs=1e-12
        )
    out = fitted(logits)
    assert isinstance(out, Tensor)
    level = fitted.state["levels"][0][place]
    torch.testing.assert_close(out.softmax(1), level / level.sum(1, keepdim=True))
    assert torch.equal(out.argmax(1), logits.argmax(1))


def test_with_very_many_bins_it_is_the_scaler(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(300, 4, 3, torch.float64)
    fine = ScalingBinning(1 << 20, "top").fit(logits, labels)(logits)
    scaled = Temperature().fit(logits, labels)(logits)
    assert isinstance(fine, Top)
    assert isinstance(scaled, Tensor)
    torch.testing.assert_close(fine.confidence, scaled.softmax(1).amax(1))


def test_any_map_of_logits_may_scale(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(300, 4, 3)
    for scaler in ("identity", 'temperature(objective="ece")'):
        piece = ScalingBinning(scaler=scaler)
        out = piece.fit(logits, labels)(logits)
        assert isinstance(out, Tensor)
        assert piece.keeps_argmax
        assert torch.equal(out.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("scaler", ["histogram", "scaling_binning", "no_such"])
def test_no_such_scaler(scaler: Any) -> None:
    with pytest.raises(CalibrantError, match=r"scaler of scaling_binning|no calibrator"):
        ScalingBinning(scaler=scaler)


def test_it_does_not_destroy_a_model(is_harmless: Callable[[str], bool]) -> None:
    assert is_harmless("scaling_binning")
