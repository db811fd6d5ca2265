"""Calibration of every class probability, not only of the largest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import ONE, Float64, Int64, check_bins, fixed_sums, width_index
from calibrant.core.numerics import probability_blocks
from calibrant.core.registry import register
from calibrant.metrics.calibration_error import CalibrationError
from calibrant.metrics.redraws import REDRAWS, Cells
from calibrant.metrics.scores import Scores

_DRAWS = 10_000_000  # labels drawn at most, shared by all redraws
_CELLS = 4_000_000  # numbers kept at most: cells times redraws
_LEAST = 100


@register("metrics", "classwise_ece", paper="kull2019dirichlet")
@dataclass(frozen=True)
class ClasswiseECE(CalibrationError):
    r"""Classwise calibration error: `ece` of each class's probability against that class, averaged over classes.

    $\frac1K \sum_k \sum_b \frac{n_{kb}}{N} |\bar p_{kb} - \bar y_{kb}|$ over all N rows and all K classes, whether
    they occur or not. It sees errors below the top label. Most probabilities are near 0, so the value shrinks like
    1/K and cannot be compared between datasets; a null drawn from the same probabilities can.
    With K = 2 both classes show the same error. *Deviation:* some tools take K from the labels that occur.
    """

    bins: int = 15
    population: ClassVar[str] = "the same bins of every class on infinitely many rows, averaged over classes"
    no_interval: ClassVar[str | None] = (
        "noise in so many small bins outweighs a small error, and what covers is twice too wide"
    )
    scope = "full-vector"

    def __post_init__(self) -> None:
        check_bins(self.bins)

    def value(self, scores: Scores) -> float:
        promised, kept = self._sums(scores)
        return float(np.abs(promised - kept).sum() / ONE / scores.total / self._classes(scores))

    def statistic(self, scores: Scores, cells: Cells, residual: Float64) -> Float64:
        return cast(Float64, np.abs(residual).sum(0) / scores.total / self._classes(scores))

    def cells(self, scores: Scores, seed: int) -> Cells:
        """Redrawn labels, each counted in the bin of the class that was drawn; fewer redraws when N K is large."""
        key = ("classwise cells", self.bins, seed, scores.weighting)
        if key not in scores.cache:
            promised, kept = self._sums(scores)
            redraws = int(np.clip(min(_DRAWS / scores.n, _CELLS / len(promised)), _LEAST, REDRAWS))
            drawn = self._draw(scores, redraws, seed)
            used = np.flatnonzero((promised > 0) | (kept > 0))
            mass = promised[used, None] / ONE
            draws = mass - drawn[used]
            order = np.arange(len(used))
            scores.cache[key] = Cells(
                order, order, mass, mass, mass, (promised - kept)[used, None] / ONE, draws
            )
        return cast(Cells, scores.cache[key])

    def resampled(self, scores: Scores, counts: Float64) -> Float64:
        drawn = torch.from_numpy(np.ascontiguousarray(counts.T))
        residual: Float64 = self._moves(scores) @ drawn.numpy()
        for rows, probs, _ in self._blocks(scores):
            residual[:: self.bins] += (probs.cpu().double().T @ drawn[rows]).numpy()
        return cast(Float64, np.abs(residual).sum(0) / counts.sum(1) / self._classes(scores))

    def _moves(self, scores: Scores) -> Any:
        """Sparse [cells, N]: what each row adds when all its probability is first put in the first bins.

        It takes the probabilities above the first edge to their own bins and takes the label from its cell.
        """
        from scipy.sparse import coo_array

        def make() -> object:
            target, row, amount = [], [], []
            for rows, probs, labels in self._blocks(scores):
                at, column = torch.nonzero(probs > 1 / self.bins, as_tuple=True)
                value = probs[at, column]
                hit = self._cell_of(probs, labels[:, None])[:, 0]
                target += [column * self.bins + width_index(value, self.bins), column * self.bins, hit]
                row += [
                    at + rows.start,
                    at + rows.start,
                    torch.arange(rows.start, rows.stop, device=at.device),
                ]
                amount += [value.double(), -value.double(), -torch.ones_like(hit, dtype=torch.float64)]
            index = (torch.cat(target).cpu().numpy(), torch.cat(row).cpu().numpy())
            shape = (self._classes(scores) * self.bins, scores.n)
            return coo_array((torch.cat(amount).cpu().numpy(), index), shape=shape).tocsr()

        return scores.cached(("moves", self.bins), make)

    def _classes(self, scores: Scores) -> int:
        assert scores.classes is not None
        return scores.classes

    def _sums(self, scores: Scores) -> tuple[Int64, Int64]:
        """Fixed-point sums of probability and of labels in each (class, bin).

        A row has fewer than `bins` probabilities above the first edge, so only those are binned one by one; the
        first bin is what remains of the class's total.
        """
        key = ("classwise", self.bins)
        if scores.weights is None and key in scores.cache:
            return cast(tuple[Int64, Int64], scores.cache[key])
        size = self._classes(scores) * self.bins
        promised, kept = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        for rows, probs, labels in self._blocks(scores):
            weight = (
                None if scores.weights is None else torch.from_numpy(scores.weights[rows]).to(probs.device)
            )
            if weight is None:
                totals = (probs * ONE).round_().sum(0, dtype=torch.float64)
            else:
                totals = (probs.double() * weight[:, None] * ONE).round_().sum(0)
            row, column = torch.nonzero(probs > 1 / self.bins, as_tuple=True)
            value = probs[row, column]
            cell = (column * self.bins + width_index(value, self.bins)).cpu().numpy()
            amount = value.double() if weight is None else value.double() * weight[row]
            inside = fixed_sums(cell, amount.cpu().numpy(), size, unit=weight is None)
            inside[:: self.bins] += totals.long().cpu().numpy() - inside.reshape(-1, self.bins).sum(1)
            promised += inside
            hit = self._cell_of(probs, labels[:, None])[:, 0].cpu().numpy()
            if weight is None:
                kept += np.bincount(hit, minlength=size) * ONE
            else:
                kept += fixed_sums(hit, weight.cpu().numpy(), size, unit=False)
        if scores.weights is None:
            scores.cache[key] = (promised, kept)
        return promised, kept

    def _blocks(self, scores: Scores) -> Iterator[tuple[slice, Tensor, Tensor]]:
        assert scores.logits is not None and scores.labels is not None
        for rows, probs in probability_blocks(scores.logits, scores.probs):
            yield rows, probs, scores.labels[rows]

    def _cell_of(self, probs: Tensor, labels: Tensor) -> Tensor:
        """The (class, bin) cell of each label [n, m] of each row."""
        return labels * self.bins + width_index(probs.gather(1, labels), self.bins)

    def _draw(self, scores: Scores, redraws: int, seed: int) -> Float64:
        """How often, or with what weight, redrawn labels fall in each cell: [cells, redraws]."""
        size = self._classes(scores) * self.bins
        generator = torch.Generator().manual_seed(seed)
        hits = np.zeros((redraws, size))
        offset = torch.arange(redraws) * size
        for rows, probs, _ in self._blocks(scores):
            p = probs.cpu()
            ladder = p.double().cumsum(1).to(p.dtype)
            tabled = p.shape[1] <= redraws  # then it is cheaper to bin every probability once than every draw
            table = self._cell_of(p, torch.arange(p.shape[1]).expand(p.shape)) if tabled else None
            for first in range(0, len(p), 4096):
                part = slice(first, first + 4096)
                uniform = torch.rand((len(p[part]), redraws), generator=generator, dtype=p.dtype)
                uniform *= ladder[part, -1:]
                drawn = torch.searchsorted(ladder[part], uniform, right=True).clamp_(max=p.shape[1] - 1)
                cell = self._cell_of(p[part], drawn) if table is None else table[part].gather(1, drawn)
                weight = None
                if scores.weights is not None:
                    weight = np.repeat(scores.weights[rows][part], redraws)
                counts = np.bincount(cell.add_(offset).reshape(-1).numpy(), weight, redraws * size)
                hits += counts.reshape(redraws, size)
        return hits.T
