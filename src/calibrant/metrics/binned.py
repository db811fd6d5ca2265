"""The binned errors of the top-label confidence: one set of bins, four ways to read the gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch

from calibrant.core.binning import (
    Float64,
    Int64,
    check_bins,
    edges,
    mass_starts,
    segment_sums,
    weighted_mass_starts,
)
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register
from calibrant.metrics.calibration_error import BinnedError, CalibrationError
from calibrant.metrics.intervals import Norm
from calibrant.metrics.redraws import Cells
from calibrant.metrics.scores import Scores


def width_groups(scores: Scores, bins: int) -> Int64:
    """Where the non-empty equal-width bins begin among the rows sorted by confidence."""

    def make() -> Int64:
        inner = edges(bins, torch.from_numpy(scores.confidence[:0]).dtype)[1:-1].numpy()
        cuts = np.searchsorted(scores.sorted_confidence, inner, side="right")
        starts = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), cuts]))
        return cast(Int64, starts[starts < scores.n])

    return cast(Int64, scores.cached(("width groups", bins), make))


def mass_groups(scores: Scores, bins: int) -> Int64:
    """Where the equal-mass groups begin among the rows sorted by confidence."""
    weights = scores.sorted_weights
    return mass_starts(scores.n, bins) if weights is None else weighted_mass_starts(weights, bins)


@register("metrics", "ece", paper="naeini2015")
@dataclass(frozen=True)
class ECE(BinnedError):
    r"""Expected calibration error: how far confidence and accuracy are apart, averaged over equal-width bins.

    $\sum_b \frac{n_b}{N} |\mathrm{conf}_b - \mathrm{acc}_b|$ over bins $(l, u]$ of the top-label confidence.
    With one bin it is |mean confidence - accuracy|; with very many it is the mean of |confidence - correctness|,
    which has nothing to do with calibration. It fails quietly on small samples, where even a calibrated model shows
    an error that falls like sqrt(bins / N): read it beside its null. Bins hide errors that cancel within them.
    """

    bins: int = 15
    norm: ClassVar[Norm] = "l1"
    population: ClassVar[str] = "the same bins on infinitely many rows: E|E[confidence - correct | bin]|"

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def value(self, scores: Scores) -> float:
        sums = scores.width_sums(self.bins)
        return float(np.abs(sums.residual).sum() / sums.mass.sum())

    def groups(self, scores: Scores) -> Int64:
        return width_groups(scores, self.bins)

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        return cast(Float64, np.abs(cells.group(self.groups(scores), residual)).sum(0) / cells.total)


@register("metrics", "rmsce", paper="hendrycks2019")
@dataclass(frozen=True)
class RMSCE(BinnedError):
    r"""Root mean square calibration error: like `ece`, but large gaps count for more.

    $\sqrt{\sum_b \frac{n_b}{N} (\mathrm{conf}_b - \mathrm{acc}_b)^2}$ over equal-width bins; never below `ece` with
    the same bins, and equal to it when all gaps are alike. On small samples it is biased upwards even more than
    `ece`: `debiased_ece` takes the expected noise out.
    """

    bins: int = 15
    norm: ClassVar[Norm] = "l2"
    population: ClassVar[str] = (
        "the same bins on infinitely many rows: root of E[E[confidence - correct | bin]^2]"
    )

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def value(self, scores: Scores) -> float:
        sums = scores.width_sums(self.bins)
        return float(np.sqrt((sums.residual * sums.gap).sum() / sums.mass.sum()))

    def groups(self, scores: Scores) -> Int64:
        return width_groups(scores, self.bins)

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        groups = self.groups(scores)
        mass = np.broadcast_to(cells.group(groups, cells.mass), (len(groups), residual.shape[1]))
        sums = cells.group(groups, residual)
        return cast(
            Float64, np.divide(sums**2, mass, out=np.zeros_like(sums), where=mass > 0).sum(0) / cells.total
        )

    def link(self, statistic: Float64) -> Float64:
        return cast(Float64, np.sqrt(statistic))


@register("metrics", "mce", paper="naeini2015")
@dataclass(frozen=True)
class MCE(CalibrationError):
    r"""Maximum calibration error: the widest gap of any equal-width bin.

    $\max_b |\mathrm{conf}_b - \mathrm{acc}_b|$ over bins with at least `min_count` rows (1 is what papers report;
    0 if no bin has as many). A single wrong row alone in a bin sets it, so it moves by tens of points from seed to
    seed; raise `min_count` before comparing models by it. With one bin it is `ece(bins=1)`.
    """

    bins: int = 15
    min_count: int = 1
    population: ClassVar[str] = "the widest gap of any bin that can occur"
    no_interval: ClassVar[str | None] = (
        "it is set by the emptiest bin, of which a sample says next to nothing"
    )

    def __post_init__(self) -> None:
        check_bins(self.bins)
        if self.min_count < 1:
            raise CalibrantError(f"min_count must be at least 1, not {self.min_count}")

    def value(self, scores: Scores) -> float:
        sums = scores.width_sums(self.bins)
        return float(np.abs(sums.gap[sums.count >= self.min_count]).max(initial=0.0))

    def groups(self, scores: Scores) -> Int64:
        return width_groups(scores, self.bins)

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        groups = self.groups(scores)
        mass = cells.group(groups, cells.mass)
        seen = (cells.group(groups, cells.count) >= self.min_count) & (mass > 0)
        gaps = np.abs(cells.group(groups, residual)) / np.where(seen, mass, np.inf)
        return cast(Float64, gaps.max(0))

    def second(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        """`ece`: one row alone in a bin has two gaps to choose from, so many redraws share the widest."""
        return cast(Float64, np.abs(cells.group(self.groups(scores), residual)).sum(0) / cells.total)


@register("metrics", "ace", paper="nguyen2015")
@dataclass(frozen=True)
class ACE(BinnedError):
    r"""Adaptive calibration error: `ece` over bins with equally many rows.

    The rows sorted by confidence are cut into `bins` groups of equal size (the first N mod bins one larger);
    $\frac{1}{N} \sum_g |\sum_{i \in g} (\mathrm{conf}_i - \mathrm{correct}_i)|$. It resolves the crowded end near
    confidence 1 where `ece` has one bin; with one bin the two agree. Equal confidences may be split between
    groups, in row order.
    *Deviation:* some tools average the gaps of equal-width bins and call that ACE; this is AdaECE, top-label.
    """

    bins: int = 15
    norm: ClassVar[Norm] = "l1"
    population: ClassVar[str] = "bins at the quantiles of confidence: E|E[confidence - correct | bin]|"

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def value(self, scores: Scores) -> float:
        order = scores.order
        sums = segment_sums(
            self.groups(scores), scores.confidence64[order], scores.sorted_correct, scores.sorted_weights
        )
        return float(np.abs(sums.residual).sum() / sums.mass.sum())

    def groups(self, scores: Scores) -> Int64:
        return mass_groups(scores, self.bins)

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        return cast(Float64, np.abs(cells.group(self.groups(scores), residual)).sum(0) / cells.total)
