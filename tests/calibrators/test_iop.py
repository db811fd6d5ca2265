"""Intra-order-preserving curves: another optimiser, temperature as the straight line, every order kept."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.calibrators.iop import IOP, _Loss
from calibrant.calibrators.temperature import Temperature
from calibrant.core.calibration import CalibrationWarning
from calibrant.core.errors import CalibrantError

Data = tuple[Tensor, Tensor]


def bent(n: int, seed: int) -> Data:
    """The truth has heavier small probabilities than any temperature gives."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 6, generator=generator, dtype=torch.float64)
    truth = 0.8 * logits.softmax(1) + 0.2 / 6
    return logits, torch.multinomial(truth, 1, generator=generator)[:, 0]


def log_loss(out: object, labels: Tensor) -> float:
    assert isinstance(out, Tensor)
    return float(torch.nn.functional.cross_entropy(out, labels))


def test_the_slopes_are_those_of_another_optimiser() -> None:
    logits, labels = bent(1500, 0)
    logits[:50, 3] = torch.where(labels[:50] == 3, logits[:50, 3], -torch.inf)  # masked classes
    fitted = IOP().fit(logits, labels)
    loss = _Loss(logits, labels, float(fitted.state["temperature"]), IOP().cuts)
    other = minimize(
        lambda w: loss.at(w)[:2], np.ones(6), jac=True, bounds=[(1e-2, 1e2)] * 6,
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000},
    )  # fmt: skip
    ours = fitted.state["slopes"].numpy()
    assert loss.at(ours)[0] <= other.fun + 1e-12
    np.testing.assert_allclose(ours, other.x, atol=1e-4)  # flat where few rows are: what L-BFGS leaves


def test_its_derivatives_are_those_of_finite_differences() -> None:
    logits, labels = bent(60, 1)
    logits[0, (labels[0] + 1) % 6] = -torch.inf
    loss = _Loss(logits, labels, 1.3, IOP().cuts)
    w = np.array([0.7, 1.2, 0.9, 1.5, 1.0, 0.4])
    _, gradient, hessian = loss.at(w)
    for j in range(6):
        step = 1e-5 * np.eye(6)[j]
        above, below = loss.at(w + step), loss.at(w - step)
        assert (above[0] - below[0]) / 2e-5 == pytest.approx(gradient[j], abs=1e-8)
        np.testing.assert_allclose((above[1] - below[1]) / 2e-5, hessian[j], atol=1e-8)


def test_slopes_of_1_are_temperature_scaling() -> None:
    logits, labels = bent(100, 2)
    fitted = IOP().fit(logits, labels)
    state = {**fitted.state, "slopes": torch.ones(6, dtype=torch.float64)}
    scaled = Temperature().fit(logits, labels)(logits)
    assert isinstance(scaled, Tensor)
    torch.testing.assert_close(IOP().apply(state, logits), scaled.log_softmax(1))


def test_it_repairs_what_no_temperature_does() -> None:
    fit, (logits, labels) = bent(4000, 3), bent(4000, 4)
    assert (
        log_loss(IOP().fit(*fit)(logits), labels) < log_loss(Temperature().fit(*fit)(logits), labels) - 0.01
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_every_order_stays_at_every_scale(scale: float) -> None:
    logits, labels = bent(400, 5)
    out = IOP().fit(scale * logits, labels)(scale * logits)
    assert isinstance(out, Tensor)
    assert bool((out.gather(1, logits.argsort(1)).diff(dim=1) >= 0).all())
    assert log_loss(out, labels) == pytest.approx(
        log_loss(IOP().fit(logits, labels)(logits), labels), abs=1e-9
    )


def test_no_best_curve_is_said() -> None:
    logits, _ = bent(30, 6)
    with pytest.warns(CalibrationWarning, match="no best curve: every row is right"):
        fitted = IOP().fit(logits, logits.argmax(1))
    assert bool((fitted.state["slopes"] == 1).all())


def test_it_does_not_destroy_a_model(is_harmless: Callable[[str], bool]) -> None:
    assert is_harmless("iop")


@pytest.mark.parametrize("knots", [(), (0.5, 0.1), (0.0, 0.5), (0.5, 1.0)])
def test_no_such_knots(knots: tuple[float, ...]) -> None:
    with pytest.raises(CalibrantError, match="knots of iop"):
        IOP(knots)
