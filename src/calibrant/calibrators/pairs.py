"""What a map of a score learns from: sorted scores, and the sorted scores of the hits among them, column by column.

A column is one question that is asked of every row: is the predicted class right, is it class k. Sorting values alone
is several times faster than ordering rows by them, and hits are few, so that nothing here is as long as N x K but the
scores themselves, a block of classes at a time. The order of the rows is lost on the way, and so it is no matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.numerics import row_pass

Array = np.ndarray
Target = Literal["top", "classwise", "shared"]
"""The predicted class alone; every class with a map of its own; every class with one map for all."""

_BLOCK = 1 << 22  # scores that are sorted at once
_LEAST = 16  # classes that are read at once: a line of the cache
_MASKED = -1.0  # stands for the score of a masked class, below all others


@dataclass(frozen=True, eq=False)
class Column:
    """One question: the scores of the rows, sorted, and those of the rows where the answer is yes, sorted."""

    scores: Array
    hits: Array


Columns = Callable[[], Iterator[Column]]


def columns(logits: Tensor, labels: Tensor, target: Target) -> Iterator[Column]:
    """The questions of a target: one, or one a class in the order of the classes. Masked classes have no pairs."""
    if target == "top":
        rows = row_pass(logits, labels)
        yield _column(rows.confidence[None], rows.confidence[rows.correct])
    elif target == "shared":
        parts = list(_class_scores(logits, labels))
        yield _column(
            torch.cat([scores.reshape(-1) for scores, _ in parts])[None], torch.cat([h for _, h in parts])
        )
    else:
        counts = torch.bincount(labels, minlength=logits.shape[1]).tolist()
        start = 0
        for scores, hits in _class_scores(logits, labels):
            ordered = _sorted(scores)
            ends = np.cumsum(counts[start : start + len(scores)])
            for row, own in zip(ordered, np.split(hits.cpu().numpy(), ends[:-1]), strict=True):
                yield Column(_unmasked(row), np.sort(own))
            start += len(scores)


def positive(logits: Tensor, labels: Tensor) -> Column:
    """The one question that two classes ask: is it class 1."""
    scores, hits = next(_class_scores(logits, labels))
    return _column(scores[1:2], hits[int((labels == 0).sum()) :])


def _column(scores: Tensor, hits: Tensor) -> Column:
    return Column(_unmasked(_sorted(scores)[0]), np.sort(hits.cpu().numpy()))


def _class_scores(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Softmax scores [k, N] of some classes at a time, and those of their hits, by class."""
    n, classes = logits.shape
    peak = logits.amax(1)
    total = torch.empty_like(peak)
    step = max(1, _BLOCK // classes)
    for first in range(0, n, step):
        rows = slice(first, first + step)
        total[rows] = logits[rows].sub(peak[rows, None]).exp_().sum(1)
    by_class = labels.argsort(stable=True)
    ends = torch.bincount(labels, minlength=classes).cumsum(0).tolist()
    step = max(_LEAST, _BLOCK // n)
    for first in range(0, classes, step):
        last = min(first + step, classes)
        part = logits[:, first:last].t().contiguous()
        masked = part == -torch.inf
        part.sub_(peak).exp_().div_(total).masked_fill_(masked, _MASKED)
        rows_hit = by_class[ends[first - 1] if first else 0 : ends[last - 1]]
        yield part, part[labels[rows_hit] - first, rows_hit]


def _sorted(scores: Tensor) -> Array:
    """Each row sorted, on the device where it is."""
    if scores.device.type == "cpu":
        return np.sort(scores.numpy(), axis=1)
    found: Array = scores.sort(1).values.cpu().numpy()
    return found


def _unmasked(ordered: Array) -> Array:
    found: Array = ordered[np.searchsorted(ordered, 0.0) :]
    return found
