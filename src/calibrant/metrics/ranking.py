"""Does confidence rank right answers above wrong ones?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from calibrant.core.binning import Float64
from calibrant.core.contracts import Better, Interval
from calibrant.core.display import Unit
from calibrant.core.registry import register
from calibrant.metrics.intervals import aurc_interval, auroc_interval
from calibrant.metrics.metric import Metric, NotApplicable
from calibrant.metrics.proper import one_row
from calibrant.metrics.scores import Scores


def tie_starts(scores: Scores) -> np.ndarray:
    """Where runs of equal confidence begin among the sorted rows."""
    ordered = scores.sorted_confidence
    return np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])


@register("metrics", "auroc", paper="hanley1982")
@dataclass(frozen=True)
class AUROC(Metric):
    r"""How well confidence tells right from wrong: the chance that a right answer has more of it than a wrong one.

    $P(c_i > c_j) + \frac12 P(c_i = c_j)$ for a right row i and a wrong row j; 0.5 is a coin, 1 a clean cut. It
    does not change under any increasing map of confidence, so a calibrated model can have a poor one and an
    uncalibrated model a good one. Without a wrong answer, or without a right one, it does not exist.
    """

    better: ClassVar[Better] = "higher"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    unit: ClassVar[Unit] = ""
    population: ClassVar[str] = "the chance that a random right answer outranks a random wrong one"

    def value(self, scores: Scores) -> float:
        weights = scores.sorted_weights
        found = self._of(scores, np.ones((1, scores.n)) if weights is None else weights[None])
        if np.isnan(found[0]):
            hits = scores.correct if scores.weights is None else scores.correct[scores.weights > 0]
            raise NotApplicable(
                f"every answer is {'right' if hits.all() else 'wrong'}: there is nothing to rank"
            )
        return float(found[0])

    def objection(self, scores: Scores) -> str | None:
        if min(self._effective(scores)) >= 2:
            return None
        return (
            "one right or one wrong answer says nothing about the scatter of its kind; it takes two of each"
        )

    def interval(self, scores: Scores, seed: int) -> Interval:
        weights = scores.sorted_weights
        right, wrong = right_and_wrong(scores, np.ones((1, scores.n)) if weights is None else weights[None])
        return auroc_interval(right[0], wrong[0], *self._effective(scores))

    def _effective(self, scores: Scores) -> tuple[float, float]:
        """Rows, or what weighted rows are worth, of right and of wrong answers."""
        weights = np.ones(scores.n) if scores.weights is None else scores.weights
        kinds = (weights[scores.correct], weights[~scores.correct])
        right, wrong = (float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0 for w in kinds)
        return right, wrong

    def resampled(self, scores: Scores, counts: Float64) -> Float64:
        return self._of(scores, counts[:, scores.order])

    def _of(self, scores: Scores, weights: Float64) -> Float64:
        """The area for each row of weights [m, N] of the sorted rows; NaN where all are right or all wrong."""
        right, wrong = right_and_wrong(scores, weights)
        below = np.cumsum(wrong, axis=1) - wrong
        pairs = right.sum(1) * wrong.sum(1)
        ordered = (right * (below + wrong / 2)).sum(1)
        return cast(Float64, np.divide(ordered, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0))


def right_and_wrong(scores: Scores, weights: Float64) -> tuple[Float64, Float64]:
    """Weight of right and of wrong answers at each distinct confidence, rising, for each row of weights [m, N]."""
    right = np.where(scores.sorted_correct, weights, 0)
    wrong = weights - right
    starts = tie_starts(scores)
    if len(starts) == scores.n:
        return right, wrong
    return np.add.reduceat(right, starts, axis=1), np.add.reduceat(wrong, starts, axis=1)


@register("metrics", "aurc", paper="geifman2017")
@dataclass(frozen=True)
class AURC(Metric):
    r"""Area under the risk-coverage curve: the error that remains when a model may keep its least confident answers.

    $\frac{1}{N} \sum_{m=1}^{N} \mathrm{err}(\text{the } m \text{ most confident})$. A model without errors has 0,
    random confidence gives the error rate. Rows of equal confidence have no order of their own: each counts the
    mean error of its group, so the value does not depend on the order of the file.
    *Deviation:* some tools integrate by trapezoids over coverage 1/N to 1.
    """

    better: ClassVar[Better] = "lower"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    population: ClassVar[str] = "the risk of a threshold on confidence, averaged over coverage"

    def value(self, scores: Scores) -> float:
        weights = scores.sorted_weights
        return float(self._of(scores, np.ones((1, scores.n)) if weights is None else weights[None])[0])

    def interval(self, scores: Scores, seed: int) -> Interval:
        weights = np.ones(scores.n) if scores.weights is None else scores.weights[scores.order]
        mass, shared = falling(scores, weights[None])
        return aurc_interval(mass[0], shared[0], 1.0 - scores.sorted_correct[::-1])

    def objection(self, scores: Scores) -> str | None:
        return one_row(scores)

    def resampled(self, scores: Scores, counts: Float64) -> Float64:
        return self._of(scores, counts[:, scores.order])

    def _of(self, scores: Scores, weights: Float64) -> Float64:
        """The area for each row of weights [m, N] of the sorted rows."""
        mass, wrong = falling(scores, weights)
        covered = np.cumsum(mass, axis=1)
        risk = np.cumsum(wrong, axis=1) / np.maximum(covered, np.finfo(float).tiny)
        return cast(Float64, (mass * risk).sum(1) / covered[:, -1])


def falling(scores: Scores, weights: Float64) -> tuple[Float64, Float64]:
    """Weight, and weight of wrong answers, of every row by falling confidence; ties share their mean error."""
    starts = tie_starts(scores)
    wrong = np.where(scores.sorted_correct, 0, weights)
    if len(starts) < scores.n:
        mass = np.maximum(np.add.reduceat(weights, starts, axis=1), np.finfo(float).tiny)
        share = np.add.reduceat(wrong, starts, axis=1) / mass
        wrong = weights * np.repeat(share, np.diff(starts, append=scores.n), axis=1)
    return weights[:, ::-1], wrong[:, ::-1]
