"""Calibration error by a Beta kernel, leave-one-out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from calibrant.core.binning import Float64
from calibrant.core.errors import CalibrantError
from calibrant.core.kernels import DENSE, Stencil, beta_log_kernel
from calibrant.core.registry import register
from calibrant.metrics.calibration_error import CalibrationError
from calibrant.metrics.metric import NotApplicable
from calibrant.metrics.proper import weighted_mean
from calibrant.metrics.redraws import Cells
from calibrant.metrics.scores import Scores

_ROWS = 512
_TAIL = 8  # nodes from an end within which sums are read in the logarithm of the distance
_TAIL_CELLS = 512
_CLOSEST = 1e-15
_TINY = np.finfo(float).tiny


@register("metrics", "kde_ece", paper="popordanoska2022")
@dataclass(frozen=True)
class KdeECE(CalibrationError):
    r"""Kernel calibration error: accuracy near each confidence by a Beta kernel, each row judged by the others.

    $\frac1N \sum_i |\hat a_{-i}(c_i) - c_i|$ with
    $\hat a_{-i}(c) = \sum_{j \ne i} a_j k(c; c_j) / \sum_{j \ne i} k(c; c_j)$ and $k$ the density
    of $\mathrm{Beta}(c_j / h + 1, (1 - c_j) / h + 1)$, which needs no correction at 0 and 1. The
    broader, the closer to one accuracy for all. A row that no other row reaches contributes 0. Beyond
    2,048 rows it is computed on a grid in arcsine scale, to 1e-4; peers build N x N.
    """

    bandwidth: float = 0.02
    population: ClassVar[str] = "E|smoothed accuracy - confidence| on infinitely many rows, at this bandwidth"
    no_interval: ClassVar[str | None] = (
        "the kernel shows an error of its own on a calibrated model, and no interval covers that and 0"
    )
    redraws: ClassVar[int] = 200

    def __post_init__(self) -> None:
        if not 1e-4 <= self.bandwidth <= 10:
            raise CalibrantError(f"bandwidth must lie between 1e-4 and 10, not {self.bandwidth:g}")

    def value(self, scores: Scores) -> float:
        if scores.n < 2:
            raise NotApplicable("leave-one-out needs at least 2 rows")
        c, a = scores.confidence64, scores.correct.astype(np.float64)
        w = np.ones(scores.n) if scores.weights is None else scores.weights
        gaps = _dense(c, a, w, self.bandwidth) if scores.n <= DENSE else _gridded(c, a, w, self.bandwidth)
        return weighted_mean(gaps, scores)

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        """At cells: a right row and a wrong row of a cell each leave themselves out."""
        c, n = cells.confidence, cells.mass
        kernel = np.exp(_scaled(beta_log_kernel(c[:, 0], c[:, 0], self.bandwidth)))
        itself = np.diagonal(kernel)[:, None] * n / np.maximum(cells.count, 1)
        right = n * c - residual
        hits = kernel @ right
        others = np.maximum(kernel @ n - itself, 0)
        alone = others <= 1e-12 * itself
        others = np.where(alone, 1, others)
        gap_right = np.where(alone, 0, np.abs(np.clip((hits - itself) / others, 0, 1) - c))
        gap_wrong = np.where(alone, 0, np.abs(np.clip(hits / others, 0, 1) - c))
        return cast(Float64, (right * gap_right + (n - right) * gap_wrong).sum(0) / cells.total)


def _scaled(log_kernel: Float64) -> Float64:
    """Shift each row of logarithms so that its largest is 0: a ratio of sums does not change."""
    peak = log_kernel.max(axis=1, keepdims=True)
    return log_kernel - np.where(np.isfinite(peak), peak, 0)


def _dense(c: Float64, a: Float64, w: Float64, bandwidth: float) -> Float64:
    """The definition, some rows at a time."""
    gaps = np.empty(len(c))
    for start in range(0, len(c), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(c)))
        logs = beta_log_kernel(c[rows], c, bandwidth)
        logs[np.arange(len(rows)), rows] = -np.inf
        kernel = np.exp(_scaled(logs))
        total = kernel @ w
        gaps[rows] = np.where(total > 0, np.abs(kernel @ (w * a) / np.maximum(total, _TINY) - c[rows]), 0)
    return gaps


def _gridded(c: Float64, a: Float64, w: Float64, bandwidth: float) -> Float64:
    """Rows spread on a uniform grid in u = (2/pi) asin(sqrt c), where the kernel has one width everywhere.

    They are read back in u, and near 0 and 1 in the logarithm of the distance, of which a kernel sum is a smooth
    function there; exactly at 0 and 1 it is taken as it is.
    """
    cells = int(np.clip(np.ceil(290 / np.sqrt(bandwidth)), 1024, 16384))
    grid = Stencil(2 / np.pi * np.arcsin(np.sqrt(c)), cells)
    node = np.sin(np.pi / 2 * np.arange(cells + 1) / cells) ** 2
    masses = np.stack([grid.spread(w * a), grid.spread(w)], axis=1)
    share, log_total = (grid.read(values) for values in _sums(node, node, masses, bandwidth))
    for distance, high in ((c, False), (1 - c, True)):
        rows = np.flatnonzero(distance < node[_TAIL])
        if len(rows):
            steps = np.linspace(np.log(_CLOSEST), np.log(node[_TAIL]), _TAIL_CELLS + 1)
            scale = (np.log(np.maximum(distance[rows], _CLOSEST)) - steps[0]) / (steps[-1] - steps[0])
            tail = Stencil(scale, _TAIL_CELLS)
            at_end = distance[rows] == 0
            near = np.exp(steps)
            inside = _sums(1 - near if high else near, node, masses, bandwidth)
            end = _sums(np.array([float(high)]), node, masses, bandwidth)
            share[rows], log_total[rows] = (
                np.where(at_end, e, tail.read(values)) for values, e in zip(inside, end, strict=True)
            )
    from scipy.special import betaln, xlog1py, xlogy

    alpha, beta = c / bandwidth, (1 - c) / bandwidth
    log_itself = xlogy(alpha, c) + xlog1py(beta, -c) - betaln(alpha + 1, beta + 1)
    itself = w * np.exp(np.minimum(log_itself - log_total, 0))
    others = 1 - itself
    alone = others <= 1e-9
    smoothed = np.clip((share - itself * a) / np.where(alone, 1, others), 0, 1)
    return cast(Float64, np.where(alone, 0, np.abs(smoothed - c)))


def _sums(at: Float64, node: Float64, masses: Float64, bandwidth: float) -> tuple[Float64, Float64]:
    """Share of right answers, and logarithm of the total weight, that the kernel gathers at each point."""
    share, log_total = np.empty(len(at)), np.empty(len(at))
    for start in range(0, len(at), _ROWS):
        rows = slice(start, start + _ROWS)
        logs = beta_log_kernel(at[rows], node, bandwidth)
        peak = logs.max(axis=1)
        hits, total = (np.exp(logs - peak[:, None]) @ masses).T
        total = np.maximum(total, _TINY)
        share[rows], log_total[rows] = np.clip(hits / total, 0, 1), np.log(total) + peak
    return share, log_total
