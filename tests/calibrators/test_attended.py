"""Attended temperature scaling: from its definition, in the case of two classes, and calibrated logits stay."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from calibrant.calibrators import Attended, Temperature
from calibrant.core.calibration import CalibrationWarning
from calibrant.core.errors import CalibrantError


def batch(n: int, k: int, sharpen: float = 1.5) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return sharpen * z, z.softmax(1).multinomial(1, generator=g)[:, 0]


@pytest.mark.parametrize("threshold", [1e-5, 0.05, 0.5])
def test_it_is_the_minimum_of_its_definition(threshold: float) -> None:
    logits, labels = batch(80, 4)
    raw = logits.softmax(1)

    def loss(log_t: float) -> float:
        p = (logits / math.exp(log_t)).softmax(1)
        total = 0.0
        for i, label in enumerate(labels.tolist()):
            for k in range(4):
                if k == label:
                    total -= math.log(p[i, k])
                elif raw[i, k] > threshold or k == int(raw[i].argmax()):
                    total -= math.log(1 - p[i, k])
        return total

    wanted = minimize_scalar(loss, bounds=(-2, 3), method="bounded", options={"xatol": 1e-9})
    found = float(Attended(threshold).fit(logits, labels).state["temperature"])
    assert math.log(found) == pytest.approx(
        wanted.x, abs=1e-6
    )  # a minimum by values alone is known to 1e-8 ** 0.5


def test_with_two_classes_it_is_temperature_scaling() -> None:
    logits, labels = batch(500, 2)
    found = Attended(0.0).fit(logits, labels).state["temperature"]
    # every row speaks of both classes, and each term is the log loss once more
    plain = Temperature().fit(logits, labels).state["temperature"]
    assert float(found) == pytest.approx(float(plain), rel=1e-6)


def test_calibrated_logits_stay_and_sharp_ones_are_repaired() -> None:
    for sharpen in (1.0, 2.0):
        found = Attended().fit(*batch(20_000, 5, sharpen)).state["temperature"]
        assert float(found) == pytest.approx(sharpen, rel=0.03)  # 20,000 rows know T to about 1 %


def test_masks_and_the_class_stay() -> None:
    logits, labels = batch(100, 4)
    logits[torch.arange(100), (labels + 1) % 4] = -torch.inf
    fitted = Attended().fit(logits, labels)
    out = fitted(logits)
    assert isinstance(out, Tensor)
    assert torch.equal(out.argmax(1), logits.argmax(1))
    assert torch.equal(out == -torch.inf, logits == -torch.inf)
    assert float(fitted.state["temperature"]) > 1


def test_no_best_temperature_is_said() -> None:
    logits, _ = batch(50, 3)
    with pytest.warns(CalibrationWarning, match="all right"):
        fitted = Attended().fit(logits, logits.argmax(1))
    assert 0 < float(fitted.state["temperature"]) < 0.1
    with pytest.warns(CalibrationWarning, match="mostly wrong"):
        assert float(Attended().fit(logits, logits.argmin(1)).state["temperature"]) > 100
    with pytest.raises(CalibrantError, match="probability"):
        Attended(2.0)
