"""Smooth calibration error: no bins, a scale that the data choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from calibrant.core.binning import Float64
from calibrant.core.kernels import Stencil, cosine_coefficients, reflected_gaussian
from calibrant.core.registry import register
from calibrant.metrics.calibration_error import CalibrationError
from calibrant.metrics.redraws import Cells
from calibrant.metrics.scores import Scores

GRID = 4096
_FINEST = 1 << 18
_REDRAW_GRID = 1024


@register("metrics", "smece", paper="blasiok2023smece")
@dataclass(frozen=True)
class SmECE(CalibrationError):
    r"""Smooth ECE: the residuals are smoothed at just the scale of the error that they show.

    $\mathrm{smECE} = s$ where $F(s) = s$, $F(s) = \int_0^1 |\frac1N \sum_i (c_i - a_i) K_s(t, c_i)| dt$ and $K_s$ is
    the Gaussian of standard deviation s reflected at 0 and 1. It is continuous in the predictions, has no bins to
    choose, and is a lower bound, within a factor, on the distance to calibration. As s grows F falls to
    |overconfidence|. It shows noise on small samples as every error here does: a calibrated model has about
    N^(-1/3) times a constant. Computed on a grid by cosine transform, to 1e-6 of the integral.
    """

    population: ClassVar[str] = "smooth ECE of infinitely many rows"
    no_interval: ClassVar[str | None] = (
        "near 0 it scatters less than any interval that covers, which is twice too wide"
    )
    redraws: ClassVar[int] = 200

    def value(self, scores: Scores) -> float:
        resid = scores.confidence64 - scores.correct
        if scores.weights is not None:
            resid = resid * scores.weights
        cells = GRID
        while True:
            mass = Stencil(scores.confidence64, cells).spread(resid) / scores.total
            width = float(fixed_point(cosine_coefficients(mass[None]))[0])
            if width * cells >= 16 or cells >= _FINEST:
                return width
            cells *= 8

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        to_nodes = Stencil(cells.confidence[:, 0], _REDRAW_GRID).read(np.eye(_REDRAW_GRID + 1)).T
        coefficients = cosine_coefficients((residual / cells.total).T @ to_nodes)
        return fixed_point(coefficients, 1e-7)


def fixed_point(coefficients: Float64, tolerance: float = 1e-10) -> Float64:
    """Solve F(s) = s for each row of cosine coefficients, by bisection with a secant step inside the bracket."""
    m = coefficients.shape[-1] - 1
    trapezoid = np.full(m + 1, 1.0 / m)
    trapezoid[[0, -1]] /= 2

    def excess(width: Float64, rows: np.ndarray) -> Float64:
        density = reflected_gaussian(coefficients[rows], width)
        return cast(Float64, np.abs(density) @ trapezoid - width)

    return solve_decreasing(excess, np.zeros(len(coefficients)), np.ones(len(coefficients)), tolerance)


def solve_decreasing(
    excess: Callable[[Float64, np.ndarray], Float64], low: Float64, high: Float64, tolerance: float
) -> Float64:
    """Roots of decreasing functions, one a row: regula falsi with the Illinois step, which cannot leave its bracket."""
    rows = np.arange(len(low))
    f_low, f_high = excess(low, rows), excess(high, rows)
    root = np.where(f_low <= 0, low, high)
    open_ = (f_low > 0) & (f_high < 0)
    rows, a, b, fa, fb = rows[open_], low[open_], high[open_], f_low[open_], f_high[open_]
    for _ in range(100):
        if not len(rows):
            break
        middle = (a * fb - b * fa) / (fb - fa)
        f = excess(middle, rows)
        root[rows] = middle
        right = f > 0
        halve_b, halve_a = right & (fa != f), ~right & (fb != f)
        a, fa_new = np.where(right, middle, a), np.where(right, f, np.where(halve_a, fa / 2, fa))
        b, fb_new = np.where(right, b, middle), np.where(right, np.where(halve_b, fb / 2, fb), f)
        fa, fb = fa_new, fb_new
        keep = (np.abs(f) > tolerance) & (b - a > tolerance)
        rows, a, b, fa, fb = rows[keep], a[keep], b[keep], fa[keep], fb[keep]
    return root
