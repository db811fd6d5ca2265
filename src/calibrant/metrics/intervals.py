"""95 % intervals: for means and ranks the classical ones, for binned calibration errors by inverting a test.

A calibration error is the size of gaps, so noise can only push it up: a calibrated model reads above zero, and a
bootstrap, which adds the noise once more, misses the truth. Instead, suppose the true gaps were t times a fixed
shape (the observed gaps, pulled towards their mean as far as noise explains them). Redrawn noise tells how the
metric would scatter for each t; the interval keeps every t under which the observed value is unsurprising.
`benchmarks/coverage.py` measures what these intervals cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from calibrant.core.binning import Float64, Int64
from calibrant.core.contracts import Interval
from calibrant.metrics.redraws import REDRAWS
from calibrant.metrics.scores import Scores

Norm = Literal["l1", "l2", "debiased"]
KEEP = 0.3  # the least of a bin's own deviation from the mean gap that the tested shape retains
_NORMAL = 1.959964
_NORMAL_QUARTER = 2.241403  # leaves alpha / 4 above it
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class Groups:
    """Bins of rows: effective number of rows, share of the weight, mean confidence, mean gap, mean c (1 - c)."""

    count: Float64
    share: Float64
    confidence: Float64
    gap: Float64
    variance: Float64

    @property
    def total(self) -> float:
        return float(self.count.sum())


def grouped(scores: Scores, starts: Int64) -> Groups:
    """Bins that begin at `starts` in rising confidence; weighted rows count as (sum w)^2 / sum w^2 rows."""
    c, a = scores.confidence64[scores.order], scores.sorted_correct
    w = np.ones(scores.n) if scores.weights is None else scores.weights[scores.order]
    mass, square = np.add.reduceat(w, starts), np.add.reduceat(w * w, starts)
    seen = mass > 0
    mass, square = mass[seen], square[seen]

    def mean(values: Float64) -> Float64:
        return cast(Float64, np.add.reduceat(w * values, starts)[seen] / mass)

    return Groups(mass**2 / square, mass / mass.sum(), mean(c), mean(c - a), mean(c * (1 - c)))


def too_few_rows(scores: Scores, bins: int) -> str | None:
    """Why a binned error has no interval on fewer than two rows a bin; None if there are enough."""
    rows = scores.effective_rows
    if rows >= 2 * bins:
        return None
    return f"{rows:.0f} rows in {bins} bins are too few for an interval that covers; it takes {2 * bins}"


def binned_interval(groups: Groups, norm: Norm, seed: int) -> Interval:
    """Interval for an error over bins. L2 errors are compared squared, the debiased one before it is cut at 0.

    Where bins lie among the rows is random too: that adds a normal term, the spread of the tested gaps over
    sqrt(N). An error that N rows without one surprise cannot exclude, 1 - 0.025^(1/N), is never left out.
    """
    rng = np.random.default_rng([seed, 1])
    n, w = groups.count, groups.share
    noise = groups.variance / n
    shape, fitted = _shrunk(groups.gap, noise, w, KEEP), _shrunk(groups.gap, noise, w, 0.0)
    edge = 1 / (n + 2)
    rate = np.clip(groups.confidence - fitted, edge, 1 - edge)
    power = 1 if norm == "l1" else 2
    size = float(w @ np.abs(shape) ** power) ** (1 / power)
    shape = shape / size if size > 1e-12 else np.ones_like(shape)
    drift = _spread(np.abs(shape) ** power, w) / math.sqrt(groups.total) * rng.standard_normal(REDRAWS)
    calm, moved = _noise(rng, groups.confidence, n), _noise(rng, rate, n)

    def measure(gap: Float64) -> Float64:
        if norm == "l1":
            return cast(Float64, w @ np.abs(gap))
        square = gap**2
        if norm == "debiased":
            accuracy = np.clip(groups.confidence[:, None] - gap, 0, 1)
            square = square - accuracy * (1 - accuracy) / np.maximum(n - 1, 1)[:, None]
        return cast(Float64, w @ square)

    def redrawn(t: float) -> Float64:
        return measure(t * shape[:, None] + (moved if t else calm)) + t**power * drift

    low, high = _invert(redrawn, float(measure(groups.gap[:, None])[0]))
    mean_noise = float(np.sqrt(np.var(w @ moved) + _spread(groups.confidence - rate, w) ** 2 / groups.total))
    low = max(low, abs(float(w @ groups.gap)) - _NORMAL_QUARTER * mean_noise, 0.0)
    return low, min(1.0, max(low, high, 1 - 0.025 ** (1 / groups.total)))


def _shrunk(gap: Float64, noise: Float64, share: Float64, keep: float) -> Float64:
    """Gaps pulled to their mean by the empirical-Bayes share of noise, each retaining at least `keep`."""
    mean = share @ gap
    spread = max(0.0, float(share @ ((gap - mean) ** 2 - noise)))
    own = spread / np.maximum(spread + noise, _TINY)
    return cast(Float64, mean + np.maximum(own, keep) * (gap - mean))


def _noise(rng: np.random.Generator, rate: Float64, count: Float64) -> Float64:
    """The chance part of confidence minus accuracy in each bin, redrawn: [bins, redraws]."""
    rows = np.maximum(np.rint(count), 1)[:, None]
    p = np.clip(rate, 0, 1)[:, None]
    return cast(Float64, p - rng.binomial(rows.astype(np.int64), p, (len(rate), REDRAWS)) / rows)


def _spread(values: Float64, share: Float64) -> float:
    """Standard deviation of bin values over the rows."""
    return math.sqrt(max(float(share @ values**2) - float(share @ values) ** 2, 0.0))


def _invert(redrawn: Callable[[float], Float64], observed: float, steps: int = 14) -> Interval:
    """The sizes t in [0, 1] that the observed value does not reject, by bisection with the same noise for every t.

    A tail of 2.5 % is spent on the upper end, and half of it on the lower: the other half pays for the bound that
    no calibration error is smaller than the signed mean gap.
    """

    def cross(inside: Callable[[float], bool], low: float, high: float) -> float:
        for _ in range(steps):
            middle = (low + high) / 2
            low, high = (middle, high) if inside(middle) else (low, middle)
        return (low + high) / 2

    calm = redrawn(0.0)
    high = 0.0
    if np.mean(calm <= observed) > 0.025:
        high = cross(lambda t: bool(np.mean(redrawn(t) <= observed) > 0.025), 0.0, 1.0)
    low = 0.0
    if np.mean(calm >= observed) <= 0.0125:
        low = cross(lambda t: bool(np.mean(redrawn(t) >= observed) <= 0.0125), 0.0, high)
    return low, max(low, high)


def wilson(wrong: float, rows: float) -> Interval:
    """Wilson's interval for a proportion; it stays inside [0, 1] and does not collapse at 0 or 1."""
    z2 = _NORMAL**2
    scale = 1 + z2 / rows
    centre = (wrong + z2 / (2 * rows)) / scale
    half = _NORMAL / scale * math.sqrt(wrong * (1 - wrong) / rows + z2 / (4 * rows**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Float64, scores: Scores, bounds: tuple[float, float]) -> Interval:
    """Student's interval for a (weighted) mean over rows, kept inside the metric's range."""
    from scipy.special import stdtrit

    rows = scores.effective_rows
    w = np.full(scores.n, 1 / scores.n) if scores.weights is None else scores.weights / scores.weights.sum()
    mean = float(w @ values)
    error = math.sqrt(float(w**2 @ (values - mean) ** 2) * rows / (rows - 1))
    half = float(stdtrit(rows - 1, 0.975)) * error
    low, high = np.clip([mean - half, mean + half], *bounds)
    return float(low), float(high)


def auroc_interval(right: Float64, wrong: Float64, rows_right: float, rows_wrong: float) -> Interval:
    """DeLong's interval on the logit scale, from the weight of right and wrong answers at each rising confidence."""
    r, q = right / right.sum(), wrong / wrong.sum()
    above = np.cumsum(q) - q / 2  # share of wrong answers below a right one
    below = 1 - (np.cumsum(r) - r / 2)  # share of right answers above a wrong one
    area = float(r @ above)
    if not 0 < area < 1:  # a clean cut: the bound that the smaller group allows
        bound = 0.025 ** (1 / min(rows_right, rows_wrong))
        return (bound, 1.0) if area >= 1 else (0.0, 1 - bound)
    variance = float(r @ (above - area) ** 2) / (rows_right - 1) + float(q @ (below - area) ** 2) / (
        rows_wrong - 1
    )
    half = _NORMAL * math.sqrt(variance) / (area * (1 - area))
    odds = math.log(area / (1 - area))
    return 1 / (1 + math.exp(half - odds)), 1 / (1 + math.exp(-half - odds))


def aurc_interval(mass: Float64, shared: Float64, wrong: Float64) -> Interval:
    """From each row's influence on the area, on the log scale; arrays by falling confidence.

    With u the coverage at which row i comes in and r(u) the error rate there, A is the integral of r, and row i
    moves it by the integral from u_i to 1 of (wrong_i - r(u)) / u, plus r(u_i) - A. `shared` spreads errors over ties.
    """
    total = mass.sum()
    rows = total**2 / (mass**2).sum()
    covered = np.maximum(np.cumsum(mass), _TINY)
    risk = np.cumsum(shared) / covered
    area = float(mass @ risk / total)
    if area == 0:  # no error in N rows: the area if as many as could hide were the most confident
        hidden = 1 - 0.025 ** (1 / rows)
        return 0.0, hidden * (1 - math.log(hidden))

    def tail(values: Float64) -> Float64:
        return cast(Float64, np.cumsum(values[::-1])[::-1])

    influence = wrong * tail(mass / covered) - tail(mass * risk / covered) + risk - area
    centred = influence - mass @ influence / total
    half = _NORMAL * math.sqrt(float(mass**2 @ centred**2)) / total / area
    return area * math.exp(-half), min(1.0, area * math.exp(half))
