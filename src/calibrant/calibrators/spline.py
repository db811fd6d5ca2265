"""Spline calibration: the slope of a smooth curve through the running sum of hits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from calibrant.calibrators.lookup import lines, stacked
from calibrant.calibrators.pairs import Array, Column, Target
from calibrant.calibrators.score_map import ScoreMap
from calibrant.core.calibration import Shape, State
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register

_KEPT = 257  # scores at which a map is kept, even in rank, and as many even in size


@register("calibrators", "spline", paper="gupta2021spline")
@dataclass(frozen=True)
class Spline(ScoreMap):
    r"""Adds to a score the local gap between hits and scores, read off a smooth curve of few knots: no bins.

    With the rows sorted by score and $t_i = i / N$, the gap summed up to there is $D(t_i) = \frac{1}{N}
    \sum_{j \le i} (a_j - s_j)$; its largest size is the Kolmogorov-Smirnov error. A natural cubic spline with `knots`
    even knots is fitted to it by least squares, and $h(s(t)) = s(t) + D'(t)$, linear between scores, within 1e-7 of
    0 and 1. A calibrated model has D near 0 and is left alone; two knots add one number to every score.
    "classwise" maps $p_k$ against 1[y = k] and renormalises: the knots are even in rank, so that of many classes the
    few high scores are badly resolved; `share` None mixes it with temperature scaling, as held-out halves want. For
    "top" it is 1: the published map. h need not increase. *Deviation:* h - s is kept at some 500 scores, even in rank
    and in size, not at all; the released code has $t_i = (i - 1) / (N - 1)$.
    """

    target: Literal["classwise", "top"] = "classwise"
    knots: int = 6
    share: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.knots <= 1000:
            raise CalibrantError(f"knots of spline must lie between 2 and 1000, not {self.knots}")
        self.check_share()

    @property
    def acts_on(self) -> Target:
        return self.target

    def learn_map(self, questions: Iterator[Column]) -> dict[str, Tensor]:
        curves = [spline_gap(column, self.knots) for column in questions]
        return {"x": stacked([x for x, _ in curves]), "gap": stacked([gap for _, gap in curves])}

    def mapped(self, state: State, scores: Tensor) -> Tensor:
        return scores + lines(state["x"], state["gap"], scores)

    def tables(self, rows: int) -> dict[str, Shape]:
        return {"x": (rows, None), "gap": (rows, None)}


def spline_gap(column: Column, knots: int) -> tuple[Array, Array]:
    """Scores at even ranks and D' there. Rows of one score share their hits, so that their order is no matter."""
    from scipy.interpolate import CubicSpline

    scores = column.scores.astype(np.float64)
    n = len(scores)
    if n < 2:
        return np.zeros(2), np.full(2, len(column.hits) - scores.sum())
    first = np.flatnonzero(np.diff(column.scores, prepend=-1))
    many = np.diff(first, append=n)
    place = np.searchsorted(column.scores[first], column.hits)
    hits = np.repeat(np.bincount(place, minlength=len(first)) / many, many)
    t = np.arange(1, n + 1) / n
    basis = CubicSpline(np.linspace(0, 1, knots), np.eye(knots), bc_type="natural")
    values = basis(t)
    heights = np.linalg.pinv(values.T @ values, rcond=1e-12) @ (values.T @ (np.cumsum(hits - scores) / n))
    even = np.linspace(0, n - 1, min(n, _KEPT)).round().astype(np.int64)
    spread = np.searchsorted(scores, np.linspace(scores[0], scores[-1], _KEPT))
    ranks = np.unique(np.concatenate([even, spread]))
    x, gap = scores[ranks], basis(t[ranks], 1) @ heights
    ends = np.flatnonzero(np.diff(x, prepend=-1))  # one knot for each score: the mean over its ranks
    x, gap = x[ends], np.add.reduceat(gap, ends) / np.diff(ends, append=len(gap))
    return (x, gap) if len(x) > 1 else (np.repeat(x, 2), np.repeat(gap, 2))
