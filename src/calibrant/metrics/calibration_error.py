"""Calibration errors as functions of residual sums, which is what gives each of them a null and an interval.

Given the confidences, every calibration error is a function of how much confidence exceeds correctness in small
cells. Put in the observed residuals and it is the metric; put in residuals of redrawn labels and it is the null.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, cast

import numpy as np

from calibrant.core.binning import Float64, Int64
from calibrant.core.contracts import Better, Interval, Null
from calibrant.metrics.intervals import Norm, binned_interval, grouped, too_few_rows
from calibrant.metrics.metric import Metric
from calibrant.metrics.redraws import (
    BINNED,
    MANY_ROWS,
    REDRAWS,
    SMOOTH,
    SMOOTH_MANY,
    Cells,
    confidence_cells,
    resample,
)
from calibrant.metrics.scores import Scores

_ROUNDING = 1e-12  # two ways to add up the same residuals differ by less


class CalibrationError(Metric):
    """The interface of a metric that is 0 for a calibrated model and depends on labels through residuals only."""

    better: ClassVar[Better] = "lower"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    redraws: ClassVar[int] = REDRAWS

    @abstractmethod
    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        """The error before `link`, for each column of residual sums [cells, m]: rises with the error."""

    def link(self, statistic: Float64) -> Float64:
        """From the statistic to the metric; a root for L2 errors."""
        return statistic

    def second(self, scores: Scores, cells: Cells, residual: Float64) -> Float64 | None:
        """What orders redraws that have the same statistic, as `statistic` does; None where hardly any have."""
        return None

    def groups(self, scores: Scores) -> Int64:
        """Where this metric's bins begin in rising confidence; a smooth one has none."""
        return np.zeros(0, dtype=np.int64)

    def cells(self, scores: Scores, seed: int) -> Cells:
        """The cells whose residuals the statistic reads."""
        starts = self.groups(scores)
        fine = BINNED if len(starts) else SMOOTH if scores.n < MANY_ROWS else SMOOTH_MANY
        return confidence_cells(scores, starts, fine, self.redraws, seed)

    def resampled(self, scores: Scores, counts: Float64) -> Float64:
        cells = self.cells(scores, 0)
        key = ("resampled", id(cells))
        held = cast("tuple[Float64, Cells, Cells] | None", scores.cache.get(key))
        if (
            held is None or held[0] is not counts or held[1] is not cells
        ):  # shared by metrics with the same cells
            held = scores.cache[key] = (counts, cells, resample(scores, cells, counts))
        drawn = held[2]
        return self.link(self.statistic(scores, drawn, drawn.residual))

    def null(self, scores: Scores, seed: int) -> Null:
        cells = self.cells(scores, seed)
        drawn = self.statistic(scores, cells, cells.draws)
        observed = self.statistic(scores, cells, cells.residual)[0]
        again, own = (self.second(scores, cells, r) for r in (cells.draws, cells.residual))
        ties = None if again is None or own is None else again >= own[0] * (1 - _ROUNDING)
        return summarise(self.link(drawn), drawn, observed, ties)


class BinnedError(CalibrationError):
    """The interface of an error over bins that gets its interval by inverting a test on the gaps of its bins."""

    bins: int
    norm: ClassVar[Norm]

    def objection(self, scores: Scores) -> str | None:
        return too_few_rows(scores, self.bins)

    def interval(self, scores: Scores, seed: int) -> Interval:
        return binned_interval(grouped(scores, self.groups(scores)), self.norm, seed)


def summarise(values: Float64, statistics: Float64, observed: float, ties: np.ndarray | None = None) -> Null:
    """Mean and 95 % quantile of the values; p from the statistic, where a metric clipped at 0 still has an order.

    `ties` says of each redraw whether it counts as extreme where its statistic equals the observed one.
    """
    extreme = statistics >= observed * (1 - _ROUNDING)
    if ties is not None:
        extreme &= ties | (statistics > observed * (1 + _ROUNDING))
    hits, count = int(extreme.sum()), len(values)
    return Null(float(values.mean()), float(np.quantile(values, 0.95)), (1 + hits) / (1 + count), count)
