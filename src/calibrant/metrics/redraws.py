"""Labels redrawn from the predictions: what a perfectly calibrated model with these very confidences would show.

Rows are gathered into cells, contiguous in the order of confidence and narrow on the arcsine scale, so that drawing
a cell's hits from one binomial is as good as drawing every label, and the cost does not grow with N.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from calibrant.core.binning import Float64, Int64
from calibrant.metrics.scores import Scores

REDRAWS = 1000
BINNED = 128  # cells between the edges of bins: the variance of a redraw is right to one part in ten thousand
SMOOTH = 1024
SMOOTH_MANY = 4096  # smooth errors of very many rows are small enough to see the cells
MANY_ROWS = 200_000
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Cells:
    """Contiguous runs of `order`, an ordering of the rows, that begin at `starts`.

    Arrays are [cells, 1], or [cells, m] where they differ between m redraws or resamples. Residuals are sums of
    weight * (confidence - correct), as observed and as redrawn.
    """

    order: Int64
    starts: Int64
    count: Float64
    mass: Float64
    confidence: Float64
    residual: Float64
    draws: Float64

    @property
    def total(self) -> Float64:
        """The weight of all rows, [1] or [m]."""
        return cast(Float64, self.mass.sum(0))

    def group(self, starts: Int64, sums: Float64) -> Float64:
        """Add up cells into the coarser groups that begin at `starts`; `sums` is [cells] or [cells, redraws]."""
        return np.add.reduceat(sums, np.searchsorted(self.starts, starts), axis=0)


def confidence_cells(scores: Scores, starts: Int64, fine: int, redraws: int, seed: int) -> Cells:
    """Cells in rising confidence, cut at `starts` and at `fine` steps of the arcsine scale.

    Metrics with the same bins share them; what else is evaluated beside a metric never changes its redraws.
    """

    def make() -> Cells:
        edges = np.sin(np.pi / 2 * np.arange(1, fine) / fine) ** 2
        cuts = np.searchsorted(scores.sorted_confidence, edges.astype(scores.confidence.dtype), side="right")
        return draw(
            scores, scores.order, np.concatenate([np.zeros(1, dtype=np.int64), cuts, starts]), redraws, seed
        )

    return cast(
        Cells, scores.cached(("cells", starts.tobytes(), fine, redraws, seed, scores.weighting), make)
    )


def draw(scores: Scores, order: Int64, starts: Int64, redraws: int, seed: int) -> Cells:
    """Cells that begin at `starts` in the given order of the rows, with their redrawn residual sums."""
    starts = np.unique(starts[starts < scores.n])
    confidence, correct = scores.confidence64[order], scores.correct[order]
    rng = np.random.default_rng(seed)
    count = np.diff(starts, append=scores.n).astype(np.float64)
    centre = np.clip(np.add.reduceat(confidence, starts) / count, 0, 1)
    if scores.weights is None:
        residual = np.add.reduceat(confidence - correct, starts)
        draws = (count * centre)[:, None] - _draw_hits(rng, count, centre, redraws)
        mass = count
    else:
        weights = scores.weights[order]
        mass = np.add.reduceat(weights, starts)
        weighted = np.add.reduceat(weights * confidence, starts)
        centre = np.clip(np.divide(weighted, mass, out=centre, where=mass > 0), 0, 1)
        residual = np.add.reduceat(weights * (confidence - correct), starts)
        draws = _weighted_residuals(rng, starts, confidence, weights, redraws)
    return Cells(order, starts, count[:, None], mass[:, None], centre[:, None], residual[:, None], draws)


def resample(scores: Scores, cells: Cells, counts: Float64) -> Cells:
    """The cells under each row of resampling counts [m, N]; bins stay where the sample put them."""
    ordered = counts.T[cells.order]
    gap = (scores.confidence64 - scores.correct)[cells.order, None]
    mass = np.add.reduceat(ordered, cells.starts, axis=0)
    residual = np.add.reduceat(ordered * gap, cells.starts, axis=0)
    return replace(cells, count=mass, mass=mass, residual=residual)


def _draw_hits(rng: np.random.Generator, count: Float64, p: Float64, redraws: int) -> Float64:
    """Binomial(count, p) for each cell, `redraws` times; a cell of one row is a single comparison."""
    hits = np.empty((len(count), redraws))
    single = count == 1
    hits[single] = rng.random((int(single.sum()), redraws)) < p[single, None]
    several = ~single
    size = (int(several.sum()), redraws)
    hits[several] = rng.binomial(count[several, None].astype(np.int64), p[several, None], size)
    return hits


def _weighted_residuals(
    rng: np.random.Generator, starts: Int64, confidence: Float64, weights: Float64, redraws: int
) -> Float64:
    """With weights every row is drawn by itself, some redraws at a time."""
    out = np.empty((len(starts), redraws))
    step = max(1, _CHUNK // len(confidence))
    for first in range(0, redraws, step):
        last = min(first + step, redraws)
        hit = rng.random((len(confidence), last - first)) < confidence[:, None]
        out[:, first:last] = np.add.reduceat(weights[:, None] * (confidence[:, None] - hit), starts, axis=0)
    return out
