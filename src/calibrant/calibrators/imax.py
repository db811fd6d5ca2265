"""Binning whose edges lose as little as possible of what the scores say about the labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from calibrant.calibrators.histogram import frequencies
from calibrant.calibrators.lookup import step_table, steps
from calibrant.calibrators.pairs import Array, Column, Target
from calibrant.calibrators.score_map import ScoreMap
from calibrant.core.binning import check_bins, weighted_mass_starts
from calibrant.core.calibration import Shape, State
from calibrant.core.registry import register

_ROUNDS = 1000
_NEAR = 1e-12  # of 0 and 1: the mean score of a bin is kept off them


@register("calibrators", "imax", paper="patel2021imax")
@dataclass(frozen=True)
class IMax(ScoreMap):
    r"""Histogram binning with the edges that keep the most mutual information between bin and label.

    With $\phi_m$ the log odds of the mean score of bin m, edges lie at the log odds
    $g_m = \ln \frac{\ln[(1 + e^{\phi_m}) / (1 + e^{\phi_{m-1}})]}{\ln[(1 + e^{-\phi_{m-1}}) / (1 + e^{-\phi_m})]}$,
    and both are repeated until nothing moves: k-means of scores under the KL divergence. The value of a bin is its
    frequency of hits, the centre where it is empty, within 1e-7 of 0 and 1. "shared" has one map for the scores of all
    classes, "classwise" one for each, "top" one for the confidence. It spends bins where hits are, which equal mass
    does not. Still, a vector of 15 values has ties and loses detail: `share` None mixes it with temperature scaling as
    held-out halves want, but is 1 for "top". *Deviation:* it starts from bins of equal expected hits and not at random.
    """

    bins: int = 15
    target: Literal["shared", "classwise", "top"] = "shared"
    share: float | None = None

    def __post_init__(self) -> None:
        check_bins(self.bins)
        self.check_share()

    @property
    def acts_on(self) -> Target:
        return self.target

    def learn_map(self, questions: Iterator[Column]) -> dict[str, Tensor]:
        inner, levels = [], []
        for column in questions:
            cuts = imax_cuts(column.scores, self.bins)
            inner.append(cuts)
            levels.append(frequencies(column, cuts))
        return step_table(inner, levels)

    def mapped(self, state: State, scores: Tensor) -> Tensor:
        return steps(state["edges"], state["levels"], scores)

    def tables(self, rows: int) -> dict[str, Shape]:
        return {"edges": (rows, None), "levels": (rows, None)}


def imax_cuts(scores: Array, bins: int) -> Array:
    """The inner edges, at most bins - 1, as scores; in a few gathers from running sums for each round."""
    n = len(scores)
    if not n or scores[-1] <= 0:
        return np.zeros(0)
    sums = np.concatenate([[0.0], np.cumsum(scores, dtype=np.float64)])
    starts = weighted_mass_starts(scores.astype(np.float64), bins)[1:]
    cuts = np.zeros(0)
    for _ in range(_ROUNDS):
        bounds = np.unique(np.concatenate([[0], starts, [n]]))
        mean = np.diff(sums[bounds]) / np.diff(bounds)
        phi = np.unique(_log_odds(np.clip(mean, _NEAR, 1 - _NEAR)))
        cuts = np.diff(np.logaddexp(0, phi)) / np.diff(phi)
        moved = np.searchsorted(scores, cuts.astype(scores.dtype), "right")
        if np.array_equal(moved, starts):
            break
        starts = moved
    return cuts


def _log_odds(p: Array) -> Array:
    found: Array = np.log(p) - np.log1p(-p)
    return found
