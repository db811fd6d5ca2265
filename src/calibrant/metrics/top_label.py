"""Calibration within each predicted class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from calibrant.core.binning import Float64, Int64, bin_sums, check_bins
from calibrant.core.registry import register
from calibrant.metrics.calibration_error import CalibrationError
from calibrant.metrics.metric import NotApplicable
from calibrant.metrics.redraws import Cells, draw
from calibrant.metrics.scores import Scores


@register("metrics", "top_label_ece", paper="gupta2022toplabel")
@dataclass(frozen=True)
class TopLabelECE(CalibrationError):
    r"""Top-label calibration error: `ece` within each predicted class, weighted by how often it is predicted.

    $\sum_k \frac{n_k}{N} \mathrm{ECE}(\text{rows predicted as } k)$ with the same equal-width bins. It sees what
    `ece` pools away: one class too confident and another too timid. With a single predicted class it is `ece`; it
    is never below it. With many classes the groups are small and the noise large: compare it with its null.
    *Deviation:* some tools average over classes without weights.
    """

    bins: int = 15
    population: ClassVar[str] = "the same bins of each predicted class on infinitely many rows"
    no_interval: ClassVar[str | None] = (
        "noise in so many small bins outweighs a small error, and what covers is twice too wide"
    )
    columns: ClassVar[tuple[str, ...]] = ("predicted",)

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def value(self, scores: Scores) -> float:
        index = self._index(scores)
        sums = bin_sums(index, scores.confidence64, scores.correct, int(index.max()) + 1, scores.weights)
        return float(np.abs(sums.residual).sum() / sums.mass.sum())

    def cells(self, scores: Scores, seed: int) -> Cells:
        key = ("top-label cells", self.bins, seed, scores.weighting)
        if key not in scores.cache:
            index = self._index(scores)
            order = np.argsort(index, kind="stable")
            starts = np.flatnonzero(np.diff(index[order], prepend=-1))
            scores.cache[key] = draw(scores, order, starts, self.redraws, seed)
        return cast(Cells, scores.cache[key])

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        return cast(Float64, np.abs(residual).sum(0) / cells.total)

    def _index(self, scores: Scores) -> Int64:
        if scores.classes is None:
            raise NotApplicable("needs the predicted class, and (confidence, correct) pairs do not say it")
        return scores.column("predicted") * self.bins + scores.width_index(self.bins)
