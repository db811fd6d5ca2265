"""What the metrics share of one set of predictions, each column computed once and only when wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import BinSums, Float64, Int64, bin_sums, width_index
from calibrant.core.contracts import ArrayLike
from calibrant.core.errors import InputError
from calibrant.core.numerics import row_pass, row_pass_probs, stable_order
from calibrant.core.predictions import Predictions, TopLabel

Array = np.ndarray


class Scores:
    """Columns of N rows: confidence, correctness, and on demand predicted class, log loss, Brier score and order.

    The confidences keep the dtype they were computed in, since bins compare in it; everything summed is float64.
    `logits` is None for (confidence, correct) pairs, and `top_label` is set where a top-label calibrator has put
    its confidence beside logits that no longer belong to it: what needs the full vector does not apply to either.
    """

    def __init__(self, source: Predictions | TopLabel, weights: ArrayLike | None = None) -> None:
        self.n = source.n
        self.logits: Tensor | None = None
        self.probs: Tensor | None = None
        self.labels: Tensor | None = None
        self.classes: int | None = None
        self._reach: float | None = None
        self.top_label = isinstance(source, TopLabel)
        self.weights = None if weights is None else check_weights(weights, self.n)
        self.weighting: object = object()  # part of every key in the cache whose value depends on the weights
        self._columns: dict[str, Array] = {}
        self.cache: dict[object, object] = {}
        if isinstance(source, TopLabel):
            self._columns["confidence"] = _cpu(source.confidence)
            self._columns["correct"] = _cpu(source.correct).astype(bool)
            return
        self.labels, self.classes = source.labels, source.classes
        if source.confidence is not None and source.predicted is not None:
            self.top_label = True
            self._columns["confidence"] = _cpu(source.confidence)
            self._columns["predicted"] = _cpu(source.predicted)
            self._columns["correct"] = _cpu(source.predicted == source.labels)
        else:
            self.logits, self.probs, self._reach = source.logits, source.probs, source.reach

    def reweighted(self, weights: Float64) -> Scores:
        """The same rows with other weights; columns and orders are shared, not copied."""
        other = object.__new__(Scores)
        other.__dict__.update(self.__dict__)
        other.weights = weights
        other.weighting = object()
        return other

    def prepare(self, columns: Iterable[str]) -> None:
        """Compute the named columns in as few passes over the logits as possible (one)."""
        wanted = {"confidence", "correct", *columns} - set(self._columns)
        if not wanted or self.logits is None or self.labels is None:
            return
        nll, brier = "nll" in wanted, "brier" in wanted
        if self.probs is None:
            predicted = "predicted" in wanted
            rows = row_pass(
                self.logits, self.labels, predicted=predicted, nll=nll, brier=brier, reach=self._reach
            )
        else:
            rows = row_pass_probs(self.probs, self.labels, brier=brier)
            if nll:
                rows = replace(rows, nll=row_pass(self.logits, self.labels, nll=True).nll)
        for name in ("confidence", "correct", "predicted", "nll", "brier"):
            column = getattr(rows, name)
            if column is not None and name not in self._columns:
                self._columns[name] = _cpu(column)

    def column(self, name: str) -> Array:
        """One of the columns, computed now if it was not yet."""
        if name not in self._columns:
            self.prepare([name])
        return self._columns[name]

    @property
    def confidence(self) -> Array:
        return self.column("confidence")

    @property
    def correct(self) -> Array:
        return self.column("correct")

    @property
    def confidence64(self) -> Float64:
        return cast(Float64, self.cached("confidence64", lambda: self.confidence.astype(np.float64)))

    @property
    def total(self) -> float:
        """The sum of the weights: N when nothing is weighted."""
        return float(self.n) if self.weights is None else float(self.weights.sum())

    @property
    def effective_rows(self) -> float:
        """Rows that say as much as the weighted ones: (sum w)^2 / sum w^2."""
        if self.weights is None:
            return float(self.n)
        return float(self.weights.sum() ** 2 / (self.weights**2).sum())

    def cached(self, key: object, make: Callable[[], object]) -> object:
        """A value that depends on the rows but not on the weights, made once."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    @property
    def order(self) -> Int64:
        """Rows by rising confidence, ties in row order."""
        return cast(Int64, self.cached("order", lambda: stable_order(self.confidence)))

    @property
    def sorted_confidence(self) -> Array:
        """The confidences in rising order, in their own dtype."""
        return cast(Array, self.cached("sorted", lambda: self.confidence[self.order]))

    @property
    def sorted_correct(self) -> Array:
        return cast(Array, self.cached("sorted_correct", lambda: self.correct[self.order]))

    @property
    def sorted_weights(self) -> Float64 | None:
        return None if self.weights is None else self.weights[self.order]

    def width_index(self, bins: int) -> Int64:
        """The equal-width bin of each row's confidence."""

        def make() -> Array:
            if bins == 1:
                return np.zeros(self.n, dtype=np.int64)
            return width_index(torch.from_numpy(self.confidence), bins).numpy()

        return cast(Int64, self.cached(("width", bins), make))

    def width_sums(self, bins: int) -> BinSums:
        """Equal-width bins of the top-label confidence, shared by every metric with the same number of bins."""

        def make() -> BinSums:
            return bin_sums(self.width_index(bins), self.confidence64, self.correct, bins, self.weights)

        return make() if self.weights is not None else cast(BinSums, self.cached(("sums", bins), make))


def check_weights(weights: ArrayLike, rows: int) -> Float64:
    """Weights are finite, not negative, not all zero, one a row; they come back with mean 1 where positive.

    They say how much a row counts beside the others, so their scale means nothing.
    """
    try:
        given = weights.detach().cpu().numpy() if isinstance(weights, Tensor) else np.asarray(weights)
        out = given.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError("weights must be numbers, one a row") from None
    if out.shape != (rows,):
        raise InputError(f"weights have shape {out.shape}, but there are {rows} rows; give one weight a row")
    bad = np.flatnonzero(~(np.isfinite(out) & (out >= 0)))
    if len(bad):
        raise InputError(f"weight {out[bad[0]]} in row {bad[0]} is not a finite number of at least 0")
    largest = out.max(initial=0.0)
    if largest == 0:
        raise InputError("all weights are 0; at least one must be positive")
    out = out / largest  # equal weights become exactly 1
    return cast(Float64, out / out[out > 0].mean())


def _cpu(column: Tensor) -> Array:
    out = column.detach().cpu()
    if out.is_floating_point() and out.dtype not in (torch.float32, torch.float64):
        out = out.float()
    return out.contiguous().numpy()
