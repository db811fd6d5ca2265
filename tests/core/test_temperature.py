"""The best temperature: against a root of the slope in float64, at every scale; the grid of ECE by a slow loop."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from calibrant.calibrators.temperature import Temperature
from calibrant.core import temperature
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.temperature import GRID, best_temperature_for_ece, fit_temperature

LN = 1e-6  # what is promised of |ln T - ln T*|


def batch(
    n: int, k: int, scale: float = 1.0, masks: float = 0.0, sharpen: float = 1.6
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n + k)
    z = 3 * torch.randn(n, k, generator=g)
    y = (z / sharpen).softmax(1).multinomial(1, generator=g)[:, 0]
    if masks:
        hidden = torch.rand(n, k, generator=g) < masks
        hidden[torch.arange(n), y] = False
        z[hidden] = -torch.inf
    return z * scale, y


def best(logits: Tensor, labels: Tensor) -> float:
    """The root of the slope of the log loss in ln(1/T), from its definition in float64."""
    z = logits.double().numpy()
    z = z - z.max(axis=1, keepdims=True)
    finite = np.where(np.isinf(z), 0, z)
    at_label = z[np.arange(len(z)), labels.numpy()]

    def slope(u: float) -> float:
        e = np.exp(math.exp(u) * z)
        return float(((e * finite).sum(1) / e.sum(1) - at_label).mean())

    start = -math.log(-finite.min())
    return -float(brentq(slope, start - 15, start + 15, xtol=1e-13, rtol=1e-13))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("n", "k", "masks"), [(7, 3, 0), (300, 2, 0), (900, 10, 0.3), (400, 100, 0.2)])
def test_temperature_is_the_optimum(n: int, k: int, masks: float, scale: float) -> None:
    logits, labels = batch(n, k, scale, masks)
    found = fit_temperature(logits, labels)
    assert found.bound is None
    assert math.log(found.temperature) == pytest.approx(best(logits, labels), abs=LN)


@pytest.mark.parametrize("sharpen", [0.05, 1.6, 30.0])
@pytest.mark.parametrize(("k", "masks"), [(8, 0.0), (80, 0.3)])
def test_blocks_of_float32_with_a_first_guess_are_as_good(
    k: int, masks: float, sharpen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temperature, "_WIDE64", 0)
    monkeypatch.setattr(temperature, "_SAMPLE", 1 << 11)
    logits, labels = batch(4000, k, 1.0, masks, sharpen)
    logits += 100 * torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    found = fit_temperature(logits, labels)
    assert math.log(found.temperature) == pytest.approx(best(logits, labels), abs=LN)


@pytest.mark.slow
def test_a_million_rows() -> None:
    logits, labels = batch(1_000_000, 10)
    assert math.log(fit_temperature(logits, labels).temperature) == pytest.approx(
        best(logits, labels), abs=LN
    )


def test_logits_that_say_almost_nothing_need_float64() -> None:
    logits, labels = batch(
        200_000, 8, sharpen=150
    )  # the best 1/T is near 0, and float32 would see only noise
    assert math.log(fit_temperature(logits, labels).temperature) == pytest.approx(
        best(logits, labels), abs=LN
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_precision(dtype: torch.dtype) -> None:
    logits, labels = batch(500, 5)
    logits = logits.to(dtype)
    assert math.log(fit_temperature(logits, labels).temperature) == pytest.approx(
        best(logits, labels), abs=LN
    )


def test_one_wrong_row_among_certain_ones_has_a_finite_optimum() -> None:
    logits = torch.tensor([[40.0, 0.0, 0.0]] * 999 + [[1e-3, 0.0, 0.0]])
    labels = torch.tensor([0] * 999 + [1])
    found = fit_temperature(logits, labels)
    assert found.bound is None
    assert math.log(found.temperature) == pytest.approx(best(logits, labels), abs=LN)


@pytest.mark.parametrize("masks", [0.0, 0.2])
@pytest.mark.parametrize(
    ("dtype", "powers"),
    [(torch.float64, (-1015, -997, -500, -60, 60, 500, 997, 1019)), (torch.float32, (-120, -60, 60, 123))],
)
def test_t_moves_with_the_scale_of_the_logits(
    dtype: torch.dtype, powers: tuple[int, ...], masks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, labels = batch(300, 4, masks=masks)
    logits = logits.to(dtype)
    t = fit_temperature(logits, labels).temperature
    monkeypatch.setattr(temperature, "_WIDE64", 0)  # so that float32 is not widened
    for power in powers:
        big = logits * 2.0 ** (power // 2) * 2.0 ** (power - power // 2)
        found = fit_temperature(big, labels)
        assert found.bound is None
        assert math.log(math.ldexp(found.temperature, -power) / t) == pytest.approx(0, abs=2 * LN)
        fitted = Temperature().fit(big, labels)(big)
        # one division is exact to half a unit in the last place; T may be off by LN twice
        torch.testing.assert_close(fitted, logits / t, rtol=3 * LN, atol=0)


def test_differences_beyond_float64_are_fitted() -> None:
    logits = torch.tensor([[1.7e308, -1.7e308]] * 20, dtype=torch.float64)
    labels = torch.tensor([0] * 19 + [1])  # the best T is the difference divided by ln 19
    small = fit_temperature(logits / 1e300, labels).temperature
    found = fit_temperature(logits, labels).temperature
    assert math.log(found / 1e300 / small) == pytest.approx(0, abs=2 * LN)


@pytest.mark.parametrize(("power", "told"), [(-1060, "float64; multiply"), (-1025, "float64; multiply")])
def test_a_temperature_that_is_no_number_is_refused(power: int, told: str) -> None:
    logits, labels = batch(50, 3)
    with pytest.raises(InputError, match=told):
        fit_temperature(logits.double() * 2.0 ** (power // 2) * 2.0 ** (power - power // 2), labels)
    wrong = torch.tensor([[1e308, 0.0]], dtype=torch.float64)  # 1e3 times its difference would be used
    with pytest.raises(InputError, match="float64; divide"):
        fit_temperature(wrong, torch.tensor([1]))


ROWS = torch.tensor([[2.0, 0.0, -4.0], [0.0, 3.0, -torch.inf]])


@pytest.mark.parametrize(
    ("logits", "labels", "temperature", "reason"),
    [
        (ROWS, [0, 1], 6e-3, "every row is right"),
        (ROWS, [2, 0], 6e3, "T goes to infinity"),
        (ROWS.nan_to_num(neginf=1.0) * 0 + 7, [0, 1], 1.0, "equal"),
        (torch.tensor([[1.0, 1.0, 0.0]]), [1], 1e-3, "every row is right"),
    ],
    ids=["all right", "all wrong", "constant", "right in a tie"],
)
def test_no_best_temperature_says_so(
    logits: Tensor, labels: list[int], temperature: float, reason: str
) -> None:
    found = fit_temperature(logits, torch.tensor(labels))
    assert found.bound is not None
    assert reason in found.bound
    assert found.temperature == pytest.approx(temperature)


def test_what_cannot_be_fitted_is_refused() -> None:
    logits, labels = batch(10, 3)
    with pytest.raises(InputError, match="no rows"):
        fit_temperature(logits[:0], labels[:0])
    with pytest.raises(InputError, match="finite"):
        fit_temperature(logits.index_fill(0, torch.tensor([3]), torch.nan), labels)
    with pytest.raises(CalibrantError, match="grid"):
        best_temperature_for_ece(logits, labels, grid=(0.0, 1.0))


def slow_best_for_ece(logits: Tensor, labels: Tensor, grid: tuple[float, ...], bins: int) -> float:
    """ECE from its definition, temperature after temperature, rows after rows."""
    errors = []
    for t in grid:
        p = (logits.double() / t).softmax(1)
        gaps = [0.0] * bins
        for row, label in zip(p.tolist(), labels.tolist(), strict=True):
            top = max(row)
            gaps[max(0, math.ceil(top * bins) - 1)] += top - (row.index(top) == label)
        errors.append(sum(map(abs, gaps)) / len(labels))
    return grid[errors.index(min(errors))]


@pytest.mark.parametrize(("n", "k", "masks"), [(300, 4, 0.0), (150, 70, 0.2)])
def test_the_grid_is_searched_as_defined(n: int, k: int, masks: float) -> None:
    logits, labels = batch(n, k, 1.0, masks)
    grid = tuple(0.3 + 0.07 * i for i in range(60))
    for z in (logits.double(), logits):
        assert best_temperature_for_ece(z, labels, grid, 15) == slow_best_for_ece(logits, labels, grid, 15)


def test_the_first_of_equal_temperatures_wins() -> None:
    logits = torch.tensor([[5000.0, 0.0]] * 3)  # confidence 1 all along the grid
    assert best_temperature_for_ece(logits, torch.tensor([0, 0, 1])) == GRID[0] == 0.01
    assert GRID[-1] == 10.0


@pytest.mark.parametrize("fit", [lambda z, y: fit_temperature(z, y).temperature, best_temperature_for_ece])
def test_the_order_of_rows_means_nothing(fit: Callable[[Tensor, Tensor], float]) -> None:
    logits, labels = batch(600, 6)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(1))
    assert fit(logits[order], labels[order]) == pytest.approx(fit(logits, labels), rel=1e-9)
