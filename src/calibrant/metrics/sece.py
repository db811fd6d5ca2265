"""The smooth calibration error of document 000, as a metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from calibrant.core.binning import Float64
from calibrant.core.errors import CalibrantError
from calibrant.core.kernels import DENSE, Stencil, gaussian_cells, gaussian_sums
from calibrant.core.registry import register
from calibrant.metrics.calibration_error import CalibrationError
from calibrant.metrics.proper import weighted_mean
from calibrant.metrics.redraws import Cells
from calibrant.metrics.scores import Scores


@register("metrics", "sece", paper="wang2024meta")
@dataclass(frozen=True)
class SECE(CalibrationError):
    r"""Smooth expected calibration error: accuracy near each confidence by a Gaussian kernel, not by bins.

    $\frac1N \sum_i |\hat a(c_i) - c_i|$ with the Nadaraya-Watson accuracy
    $\hat a(c) = \sum_j a_j K_h(c - c_j) / \sum_j K_h(c - c_j)$, $h$ the bandwidth, the row itself included and
    accuracy hard. A bandwidth near 0 gives the mean of |correct - confidence|, a broad one that of |accuracy -
    confidence| with one accuracy for all. It is not unbiased: with few rows within a bandwidth it shows mostly
    noise (0.15 at N = 128 for a calibrated model).
    *Deviation:* the surrogate of the same name has all-pairs accuracy by default, so that it has a gradient.
    """

    bandwidth: float = 0.01
    population: ClassVar[str] = "E|smoothed accuracy - confidence| on infinitely many rows, at this bandwidth"
    no_interval: ClassVar[str | None] = (
        "near 0 it scatters less than any interval that covers, which is twice too wide"
    )
    redraws: ClassVar[int] = 200

    def __post_init__(self) -> None:
        if not 1e-5 <= self.bandwidth <= 10:
            raise CalibrantError(f"bandwidth must lie between 1e-5 and 10, not {self.bandwidth:g}")

    def value(self, scores: Scores) -> float:
        c, a = scores.confidence64, scores.correct.astype(np.float64)
        w = np.ones(scores.n) if scores.weights is None else scores.weights
        if scores.n <= DENSE:
            kernel = np.exp(-0.5 * ((c[:, None] - c) / self.bandwidth) ** 2)
            smoothed = kernel @ (w * a) / np.maximum(kernel @ w, np.finfo(float).tiny)
        else:
            grid = Stencil(c, gaussian_cells(self.bandwidth))
            sums = gaussian_sums(np.stack([grid.spread(w * a), grid.spread(w)]), self.bandwidth)
            hits, total = grid.read(sums)
            smoothed = np.clip(hits / np.maximum(total, np.finfo(float).tiny), 0, 1)
        return weighted_mean(np.abs(smoothed - c), scores)

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        c, n = cells.confidence, cells.mass
        kernel = np.exp(-0.5 * ((c - c.T) / self.bandwidth) ** 2)
        total = np.maximum(kernel @ n, np.finfo(float).tiny)
        gap = kernel @ (n * c - residual) / total - c
        return cast(Float64, (n * np.abs(gap)).sum(0) / cells.total)
