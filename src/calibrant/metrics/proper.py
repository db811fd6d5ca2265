"""Means over rows: error, the proper scores, and the signed gap of confidence."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from calibrant.core.binning import Float64
from calibrant.core.contracts import Better, Interval, Null
from calibrant.core.display import Unit
from calibrant.core.numerics import exact_sum
from calibrant.core.registry import register
from calibrant.metrics.calibration_error import CalibrationError, summarise
from calibrant.metrics.intervals import mean_interval, wilson
from calibrant.metrics.metric import Metric
from calibrant.metrics.redraws import Cells
from calibrant.metrics.scores import Scores


def weighted_mean(values: Float64, scores: Scores) -> float:
    """The mean of a column, with the weights if there are any, independent of the order of rows."""
    if scores.weights is None:
        return exact_sum(values) / scores.n
    counted = scores.weights > 0
    values, weights = values[counted], scores.weights[counted]
    mean = exact_sum(values * weights) / exact_sum(weights)
    return min(max(mean, float(values.min())), float(values.max()))


def one_row(scores: Scores) -> str | None:
    """Why a mean has no interval on a single row; None if there are more."""
    return None if scores.effective_rows > 1 else "one row says nothing about its own scatter"


class MeanOfRows(Metric):
    """The interface of a metric that is the mean of one number a row."""

    better: ClassVar[Better] = "lower"

    @abstractmethod
    def rows(self, scores: Scores) -> Float64:
        """The number of each row."""

    def value(self, scores: Scores) -> float:
        return weighted_mean(self.rows(scores), scores)

    def resampled(self, scores: Scores, counts: Float64) -> Float64:
        return cast(Float64, counts @ self.rows(scores) / counts.sum(1))

    def objection(self, scores: Scores) -> str | None:
        return one_row(scores)

    def interval(self, scores: Scores, seed: int) -> Interval:
        return mean_interval(self.rows(scores), scores, self.range)


@register("metrics", "error")
@dataclass(frozen=True)
class Error(MeanOfRows):
    r"""Error rate: the share of rows whose most probable class is not the label.

    $1 - \frac{1}{N} \sum_i \mathbb{1}[\hat y_i = y_i]$, the first class winning ties. It knows nothing of
    confidence: a model can lower it and become less calibrated, which is why it stands beside every other number.
    """

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    population: ClassVar[str] = "the probability of a wrong prediction"

    def rows(self, scores: Scores) -> Float64:
        return 1.0 - scores.correct

    def objection(self, scores: Scores) -> None:
        return None

    def interval(self, scores: Scores, seed: int) -> Interval:
        return wilson(self.value(scores), scores.effective_rows)


@register("metrics", "nll", paper="good1952")
@dataclass(frozen=True)
class NLL(MeanOfRows):
    r"""Negative log-likelihood, in nats: the proper score that training minimises.

    $-\frac{1}{N} \sum_i \ln p_{i,y_i}$. It punishes confident errors without bound: one true class with probability
    0 makes it infinite, and nothing is clipped here. A model that always says 1/K scores ln K.
    *Deviation:* tools that clip probabilities report a smaller number for exactly the rows that matter.
    """

    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    population: ClassVar[str] = "the expected log loss of a new row"
    unit: ClassVar[Unit] = ""
    scope = "full-vector"
    columns: ClassVar[tuple[str, ...]] = ("nll",)

    def rows(self, scores: Scores) -> Float64:
        return scores.column("nll")


@register("metrics", "brier", paper="brier1950")
@dataclass(frozen=True)
class Brier(MeanOfRows):
    r"""Brier score: the squared distance between the predicted probabilities and the label, summed over classes.

    $\frac{1}{N} \sum_i \sum_k (p_{ik} - \mathbb{1}[k = y_i])^2$, from 0 to 2. A proper score that stays finite: it
    mixes calibration with sharpness, so a sharper model may have a lower Brier score and a worse calibration.
    *Deviation:* some tools divide by K, or by 2 when K = 2.
    """

    range: ClassVar[tuple[float, float]] = (0.0, 2.0)
    population: ClassVar[str] = "the expected Brier score of a new row"
    scope = "full-vector"
    columns: ClassVar[tuple[str, ...]] = ("brier",)

    def rows(self, scores: Scores) -> Float64:
        return scores.column("brier")


@register("metrics", "overconfidence")
@dataclass(frozen=True)
class Overconfidence(CalibrationError):
    r"""Mean confidence minus accuracy: above 0 the model promises more than it keeps, below 0 less.

    $\frac{1}{N} \sum_i (\mathrm{conf}_i - \mathrm{correct}_i)$. Its size is `ece` with one bin. Errors of opposite
    sign cancel, so 0 does not mean calibrated; it is the one calibration number without bias, and the only one
    with a direction. Its null is that of its size, and its p is two-sided.
    """

    better: ClassVar[Better] = "zero"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    population: ClassVar[str] = "expected confidence minus the probability of being right"

    def value(self, scores: Scores) -> float:
        sums = scores.width_sums(1)
        return float(sums.residual[0] / sums.mass[0])

    def objection(self, scores: Scores) -> str | None:
        return one_row(scores)

    def interval(self, scores: Scores, seed: int) -> Interval:
        return mean_interval(scores.confidence64 - scores.correct, scores, self.range)

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        return cast(Float64, residual.sum(0) / cells.total)

    def null(self, scores: Scores, seed: int) -> Null:
        cells = self.cells(scores, seed)
        size = np.abs(self.statistic(scores, cells, cells.draws))
        return summarise(size, size, abs(self.statistic(scores, cells, cells.residual)[0]))
