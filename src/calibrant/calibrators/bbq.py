"""Bayesian binning into quantiles: histograms with several numbers of bins, each weighted by its evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.histogram import frequencies
from calibrant.calibrators.lookup import step_table, steps
from calibrant.calibrators.pairs import Array, Column, Target, positive
from calibrant.calibrators.score_map import ScoreMap
from calibrant.core.binning import check_bins
from calibrant.core.calibration import Shape, State
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register

_OUTSIDE = 1e-5  # by which the outer edges lie beyond 0 and 1
_PRIOR = 2.0  # rows that the prior counts for, over all bins


@register("calibrators", "bbq", paper="naeini2015")
@dataclass(frozen=True)
class BBQ(ScoreMap):
    r"""Averages equal-frequency histograms with 2, 3, ..., `bins` bins, so that no number of bins has to be chosen.

    $h(s) = \sum_B w_B\, n^1_b / n_b$ over the bin b of s in each, and $w_B$ in proportion to the evidence
    $\prod_b \frac{\Gamma(m)}{\Gamma(n_b + m)} \frac{\Gamma(n^1_b + \alpha_b)}{\Gamma(\alpha_b)}
    \frac{\Gamma(n^0_b + \beta_b)}{\Gamma(\beta_b)}$, $m = 2/B$, $\alpha_b = m \cdot$ centre. Edges are quantiles. One
    model that is far better is `histogram(scheme="mass")`; no evidence at all is their plain mean. Values lie within
    1e-7 of 0 and 1. K = 2 is one fit, to the probability of class 1, and `share` None is 1 there. With more classes it
    is one against the rest and renormalised, which few rows a class make worse than no map: None learns on held-out
    halves which share of it to mix with temperature scaling.
    """

    bins: int = 15
    share: float | None = None

    def __post_init__(self) -> None:
        check_bins(self.bins)
        if self.bins < 2:
            raise CalibrantError("bins of bbq is the largest number of bins that is tried, at least 2, not 1")
        self.check_share()

    @property
    def acts_on(self) -> Target:
        return "classwise"

    def questions(self, logits: Tensor, labels: Tensor) -> Iterator[Column]:
        if logits.shape[1] == 2:
            yield positive(logits, labels)
        else:
            yield from super().questions(logits, labels)

    def rows(self, classes: int) -> int:
        return 1 if classes == 2 else classes

    def share_for(self, classes: int) -> float | None:
        return 1.0 if self.share is None and classes == 2 else self.share

    def learn_map(self, questions: Iterator[Column]) -> dict[str, Tensor]:
        tables = [bbq_table(column, self.bins) for column in questions]
        return step_table([cuts for cuts, _ in tables], [levels for _, levels in tables])

    def mapped(self, state: State, scores: Tensor) -> Tensor:
        if len(state["levels"]) > 1:
            return steps(state["edges"], state["levels"], scores)
        found = steps(state["edges"], state["levels"], scores[:, 1:])
        return torch.cat([1 - found, found], 1)

    def tables(self, rows: int) -> dict[str, Shape]:
        return {"edges": (rows, None), "levels": (rows, None)}


def bbq_table(column: Column, most: int) -> tuple[Array, Array]:
    """The edges of all models together, and the weighted mean of their frequencies between them."""
    from scipy.special import gammaln, softmax

    scores = column.scores.astype(np.float64)
    if not len(scores):
        return np.zeros(0), np.zeros(1)
    pairs = Column(scores, column.hits.astype(np.float64))
    cuts, levels, evidence = [], [], []
    for bins in range(2, most + 1):
        inner = np.unique(_quantiles(scores, np.arange(1, bins) / bins))
        whole = np.concatenate([[-_OUTSIDE], inner, [1 + _OUTSIDE]])
        n, hits = (
            np.diff(np.searchsorted(values, inner, "right"), prepend=0, append=len(values))
            for values in (pairs.scores, pairs.hits)
        )
        m = _PRIOR / bins
        alpha = m * (whole[1:] + whole[:-1]) / 2
        alpha, beta = np.maximum(alpha, 1e-12), np.maximum(m - alpha, 1e-12)
        terms = gammaln(m) - gammaln(n + m) + gammaln(hits + alpha) - gammaln(alpha)
        evidence.append(float((terms + gammaln(n - hits + beta) - gammaln(beta)).sum()))
        cuts.append(inner)
        levels.append(frequencies(pairs, inner))
    edges = np.unique(np.concatenate(cuts))
    bin_of = np.append(edges, np.inf)  # (l, u]: the upper edge of a piece is in the bin of the piece
    every = [own[np.searchsorted(inner, bin_of, "left")] for inner, own in zip(cuts, levels, strict=True)]
    weights: Array = softmax(np.array(evidence))
    return edges, weights @ np.stack(every)


def _quantiles(ordered: Array, shares: Array) -> Array:
    """Linear quantiles of what is sorted already."""
    place = shares * (len(ordered) - 1)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    low, high, part = ordered[below], ordered[above], place - below
    found: Array = np.where(part < 0.5, low + part * (high - low), high - (1 - part) * (high - low))
    return found
