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
    logits: Tensor, labels: Tensor, *, predicted: bool = False, nll: bool = False, brier: bool = False
) -> Rows:
    """Top confidence and correctness of each row, and what else is asked for, from logits."""
    n, k = logits.shape
    dtype, device = working_dtype(logits.dtype), logits.device
    conf = torch.empty(n, dtype=dtype, device=device)
    top = torch.empty(n, dtype=dtype, device=device)
    at_label = torch.empty(n, dtype=dtype, device=device)
    square = torch.empty(n if brier else 0, dtype=dtype, device=device)
    first = torch.empty(n if predicted else 0, dtype=torch.int64, device=device)
    scratch = torch.empty((max(1, BLOCK // k), k), dtype=dtype, device=device)
    for rows in blocks(n, k):
        z = logits[rows]
        if z.dtype != dtype:
            z = z.to(dtype)
        if predicted:
            peak, first[rows] = z.max(dim=1)
        else:
            peak = z.amax(dim=1)
        e = scratch[: len(z)]
        torch.sub(z, peak[:, None], out=e)
        e.exp_()
        torch.sum(e, 1, out=conf[rows])
        if brier:
            torch.linalg.vector_norm(e, dim=1, out=square[rows])
        top[rows] = peak
        at_label[rows] = z.gather(1, labels[rows, None])[:, 0]
    correct = first == labels if predicted else _hits(logits, labels, at_label == top, conf)
    log_p = None
    if nll or brier:
        log_p = at_label.double() - top - conf.double().log()
    score = None
    if brier and log_p is not None:
        score = ((square.double() / conf) ** 2 - 2 * log_p.exp() + 1).clamp_(min=0)
    return Rows(
        conf.reciprocal_(),
        correct,
        first if predicted else None,
        0 - log_p if nll and log_p is not None else None,
        score,
    )


def _hits(scores: Tensor, labels: Tensor, reaches_top: Tensor, total: Tensor) -> Tensor:
    """Rows whose label is the first of the largest scores; a tie needs a softmax sum of 2 or more to be possible."""
    doubtful = torch.nonzero(reaches_top & (total >= 2))[:, 0]
    if len(doubtful):
        for rows in blocks(len(doubtful), scores.shape[1]):
            part = doubtful[rows]
            reaches_top[part] = scores[part].argmax(dim=1) == labels[part]
    return reaches_top


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
    """Softmax probabilities block by block; each block is overwritten by the next."""
    n, k = logits.shape
    if probs is not None:
        for rows in blocks(n, k):
            yield rows, probs[rows].to(working_dtype(probs.dtype))
        return
    dtype = working_dtype(logits.dtype)
    scratch = torch.empty((max(1, BLOCK // k), k), dtype=dtype, device=logits.device)
    for rows in blocks(n, k):
        z = logits[rows].to(dtype)
        e = scratch[: len(z)]
        torch.sub(z, z.amax(dim=1, keepdim=True), out=e)
        e.exp_()
        e.div_(e.sum(dim=1, keepdim=True))
        yield rows, e


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
