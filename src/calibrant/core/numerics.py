"""One blocked pass over the logits: all that the metrics share, computed once, never as a second N x K array.

A block fits the cache, so the pass runs at the speed of `exp`; memory beyond the logits is a few numbers a row.
Arithmetic is that of the input's dtype (half precisions are widened to float32, exactly); what leaves the pass is
float64 apart from confidences, which keep the dtype in which they were computed so that bin edges are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 19  # elements in a block: two megabytes of float32
_NARROW = 32
_SAFE = 40.0
"""Logits no larger than this need no row maximum: exponentials, their squares and long sums of them stay in range."""
Array = np.ndarray


@dataclass(frozen=True)
class Rows:
    """Columns with one entry a row; `nll`, `brier` and `predicted` only when asked for."""

    confidence: Tensor
    correct: Tensor
    predicted: Tensor | None = None
    nll: Tensor | None = None
    brier: Tensor | None = None


def blocks(rows: int, classes: int) -> Iterator[slice]:
    """Row ranges of about BLOCK elements each."""
    step = max(1, BLOCK // classes)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays; everything else is computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def row_pass(
    logits: Tensor,
    labels: Tensor,
    *,
    predicted: bool = False,
    nll: bool = False,
    brier: bool = False,
    reach: float | None = None,
) -> Rows:
    """Top confidence and correctness of each row, and what else is asked for, from logits.

    `reach` is the largest size of any logit, where that is known: then nothing is read twice. The probability of the
    label is set apart and the largest of the others is found: a right answer is one that is above it. Where the two
    are equal, in exact ties and where rounding made them so, the logits decide.
    """
    n, dtype, device = len(logits), working_dtype(logits.dtype), logits.device
    at_label = torch.empty(n, dtype=dtype, device=device)
    other = torch.empty(n, dtype=dtype, device=device)
    square = torch.empty(n if brier else 0, dtype=dtype, device=device)
    first = torch.empty(n if predicted else 0, dtype=torch.int64, device=device)
    for rows, p, total in _unscaled_blocks(logits, reach):
        label = labels[rows, None]
        torch.gather(p, 1, label, out=at_label[rows, None])
        if brier:
            torch.linalg.vector_norm(p, dim=1, out=square[rows])
        p.scatter_(1, label, 0)
        torch.amax(p, 1, out=other[rows])
        if total is not None:
            for column in (at_label, other, square) if brier else (at_label, other):
                column[rows].div_(total)
        if predicted:
            first[rows] = logits[rows].argmax(dim=1)
    correct = first == labels if predicted else _hits(logits, labels, at_label, other)
    loss = _log_loss(logits, labels, at_label) if nll else None
    score = (square.double() ** 2 - 2 * at_label.double() + 1).clamp_(0, 2) if brier else None
    return Rows(torch.maximum(at_label, other), correct, first if predicted else None, loss, score)


def _hits(logits: Tensor, labels: Tensor, at_label: Tensor, other: Tensor) -> Tensor:
    """Rows whose label is the first of the largest logits."""
    hit = at_label > other
    doubtful = torch.nonzero(at_label == other)[:, 0]
    for rows in blocks(len(doubtful), logits.shape[1]):
        part = doubtful[rows]
        hit[part] = logits[part].argmax(dim=1) == labels[part]
    return hit


def _log_loss(logits: Tensor, labels: Tensor, at_label: Tensor) -> Tensor:
    """-ln of the label's probability in float64; where that underflows, from the logits themselves."""
    loss = 0 - at_label.double().log()
    lost = torch.nonzero(at_label < 1e8 * torch.finfo(at_label.dtype).tiny)[:, 0]
    for rows in blocks(len(lost), logits.shape[1]):
        part = lost[rows]
        loss[part] = -logits[part].double().log_softmax(1).gather(1, labels[part, None])[:, 0]
    return loss


def row_pass_probs(probs: Tensor, labels: Tensor, *, brier: bool = False) -> Rows:
    """The same columns from exact probabilities, which are not sent through a logarithm and back."""
    n, k = probs.shape
    dtype = working_dtype(probs.dtype)
    conf = torch.empty(n, dtype=dtype, device=probs.device)
    first = torch.empty(n, dtype=torch.int64, device=probs.device)
    square = torch.empty(n if brier else 0, dtype=torch.float64, device=probs.device)
    for rows in blocks(n, k):
        p = probs[rows].to(dtype)
        conf[rows], first[rows] = p.max(dim=1)
        if brier:
            square[rows] = (p.double() ** 2).sum(dim=1)
    conf.clamp_(max=1)
    if not brier:
        return Rows(conf, first == labels, first)
    at_label = probs.gather(1, labels[:, None])[:, 0].double()
    return Rows(conf, first == labels, first, None, square.sub_(2 * at_label).add_(1).clamp_(min=0))


def probability_blocks(logits: Tensor, probs: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Softmax probabilities block by block; a block may be written to, and is overwritten by the next."""
    n, k = logits.shape
    if probs is not None:
        for rows in blocks(n, k):
            yield rows, probs[rows].to(working_dtype(probs.dtype), copy=True)
        return
    for rows, p, total in _unscaled_blocks(logits):
        yield rows, p if total is None else p.div_(total[:, None])


def _unscaled_blocks(
    logits: Tensor, reach: float | None = None
) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Blocks of softmax probabilities, or of what is left to be divided by each row's total.

    Plain steps are several times faster than the fused softmax on short rows, and on long ones where it is known that
    no exponential can overflow or vanish.
    """
    n, k = logits.shape
    dtype = working_dtype(logits.dtype)
    scratch = torch.empty((max(1, BLOCK // k), k), dtype=dtype, device=logits.device)
    plain = logits.device.type == "cpu" and (k <= _NARROW or (reach is not None and reach < _SAFE))
    for rows in blocks(n, k):
        z, p = logits[rows].to(dtype), scratch[: rows.stop - rows.start]
        if not plain:
            torch.softmax(z, 1, out=p)
            yield rows, p, None
            continue
        if (reach if reach is not None else _size(z)) < _SAFE:
            torch.exp(z, out=p)
        else:
            torch.sub(z, z.amax(dim=1, keepdim=True), out=p)
            p.exp_()
        yield rows, p, p.sum(dim=1)


def _size(values: Tensor) -> float:
    """The largest absolute value."""
    low, high = values.aminmax()
    return max(-float(low), float(high))


def exact_sum(values: Array) -> float:
    """A sum that does not depend on the order of its terms: in integers, at a scale that their size allows."""
    peak = float(np.abs(values).max(initial=0.0))
    if peak == 0 or not math.isfinite(peak):
        return float(values.sum())
    shift = 61 - math.frexp(peak)[1] - len(values).bit_length()
    return math.ldexp(int(np.rint(np.ldexp(values, shift)).astype(np.int64).sum()), -shift)


def stable_order(values: Array) -> Array:
    """Indices that sort non-negative values, ties in row order.

    Positive float32 values sort like their bits, so value and row number travel in one 64-bit key, which sorts
    several times faster than a stable argsort.
    """
    if values.dtype == np.float32 and len(values) < 1 << 32:
        keys = np.abs(values).view(np.uint32).astype(np.uint64)
        keys <<= np.uint64(32)
        keys |= np.arange(len(values), dtype=np.uint64)
        keys.sort()
        keys &= np.uint64(0xFFFFFFFF)
        order: Array = keys.view(np.int64)
    else:
        order = np.argsort(values, kind="stable")
    return order
