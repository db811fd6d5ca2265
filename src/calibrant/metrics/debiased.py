"""The L2 calibration error with its expected noise taken out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from calibrant.core.binning import (
    ONE,
    Float64,
    Int64,
    check_bins,
    mass_starts,
    segment_sums,
    weighted_mass_starts,
)
from calibrant.core.registry import register
from calibrant.metrics.calibration_error import BinnedError
from calibrant.metrics.intervals import Norm
from calibrant.metrics.redraws import Cells
from calibrant.metrics.scores import Scores


@register("metrics", "debiased_ece", paper="kumar2019verified")
@dataclass(frozen=True)
class DebiasedECE(BinnedError):
    r"""Debiased L2 calibration error: near 0 for a calibrated model where `ece` and `rmsce` show their noise.

    $\sqrt{\max(0, \sum_b \frac{n_b}{N} [\mathrm{gap}_b^2 - \frac{a_b (1 - a_b)}{n_b - 1}])}$ over bins whose edges
    lie midway between equal-mass groups, $a_b$ the accuracy; bins with fewer than two rows are left out. With large
    bins it tends to the root mean square gap. On calibrated data about half of all samples give exactly 0, and the
    rest scatter up: read the interval. Weights say what a row counts for, not how many
    rows there are.
    """

    bins: int = 15
    norm: ClassVar[Norm] = "debiased"
    population: ClassVar[str] = (
        "bins at the quantiles of confidence: root of E[E[confidence - correct | bin]^2]"
    )

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def value(self, scores: Scores) -> float:
        sums = segment_sums(
            self.groups(scores),
            scores.confidence64[scores.order],
            scores.sorted_correct,
            scores.sorted_weights,
        )
        statistic = _debiased_square(
            sums.mass[:, None], sums.confidence[:, None] / ONE, sums.residual[:, None]
        )
        return float(self.link(statistic)[0])

    def groups(self, scores: Scores) -> Int64:
        weights = scores.sorted_weights
        counted = np.arange(scores.n) if weights is None else np.flatnonzero(weights)
        ordered = scores.sorted_confidence.astype(np.float64)
        cuts = mass_starts(scores.n, self.bins)
        if weights is not None:
            cuts = weighted_mass_starts(weights[counted], self.bins)
        last, first = ordered[counted[cuts[1:] - 1]], ordered[counted[cuts[1:]]]
        starts = np.searchsorted(ordered, (last + first) / 2, side="right")
        starts = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), starts]))
        return cast(Int64, starts[starts < scores.n])

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        groups = self.groups(scores)
        mass = cells.group(groups, cells.mass)
        confidence = cells.group(groups, cells.mass * cells.confidence)
        return _debiased_square(mass, confidence, cells.group(groups, residual))

    def link(self, statistic: Float64) -> Float64:
        return cast(Float64, np.sqrt(np.maximum(statistic, 0)))


def _debiased_square(mass: Float64, confidence: Float64, residual: Float64) -> Float64:
    """The debiased sum of squared gaps for each column of residual sums [bins, m]; mass is [bins, 1] or [bins, m]."""
    n = np.where(mass > 1, mass, np.inf)  # smaller bins contribute nothing
    gap = residual / n
    accuracy = confidence / n - gap
    return cast(Float64, (mass / mass.sum(0) * (gap**2 - accuracy * (1 - accuracy) / (n - 1))).sum(0))
