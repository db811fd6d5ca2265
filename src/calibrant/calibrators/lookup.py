"""Tables read in torch operations: steps, and straight lines between knots.

The place in a table is found by `searchsorted`, and where a model is exported by halving, in as many gathers as its
length has bits: the same places, in operations that ONNX has. Tables of several questions have rows of one length,
padded at the end: with edges that no score exceeds, or with the last knot once more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

Array = np.ndarray
_BEYOND = 2.0  # above every score
_STEEPEST = 1e38  # scores such as 0 and 1e-310 may be neighbours, and an infinite slope times 0 is no number


def steps(edges: Tensor, levels: Tensor, scores: Tensor) -> Tensor:
    """The level of each score's bin: bins are (l, u], tables [K, L] and [K, L + 1] or [1, ...], scores [N, K]."""
    width = levels.shape[1]
    return levels.to(scores).reshape(-1)[_below(edges, scores) + _offset(levels, width)]


def lines(x: Tensor, y: Tensor, scores: Tensor) -> Tensor:
    """Linear between the knots (x, y) and constant beyond them; tables [K, M] or [1, M] with M >= 2, scores [N, K]."""
    x, y = x.to(scores), y.to(scores)
    gap = x.diff(dim=1)
    slope = y.diff(dim=1) / torch.where(gap > 0, gap, 1)  # padding is level: 0 / 1
    slope = slope.clamp(-_STEEPEST, _STEEPEST)
    inside = torch.maximum(torch.minimum(scores, x[:, -1]), x[:, 0])
    place = _below(x[:, 1:-1], inside)
    at = place + _offset(x, x.shape[1])
    left, low = x.reshape(-1)[at], y.reshape(-1)[at]
    return low + (inside - left) * slope.reshape(-1)[place + _offset(slope, slope.shape[1])]


def _below(edges: Tensor, scores: Tensor) -> Tensor:
    """How many edges of its row are below each score."""
    edges = edges.to(scores)
    if torch.compiler.is_exporting():
        return halved(edges, scores)
    if len(edges) == 1:
        return torch.searchsorted(edges[0].contiguous(), scores.contiguous())
    return torch.searchsorted(edges.contiguous(), scores.t().contiguous()).t()


def halved(edges: Tensor, scores: Tensor) -> Tensor:
    """The same by halving: a row of 2^b - 1 edges in b steps."""
    size = 1 << edges.shape[1].bit_length()
    flat = pad(edges, (0, size - edges.shape[1]), value=_BEYOND).reshape(-1)
    offset = _offset(edges, size)
    found = torch.zeros_like(scores, dtype=torch.int64)
    half = size // 2
    while half:
        found = found + (flat[found + (offset + half - 1)] < scores).long() * half
        half //= 2
    return found


def _offset(table: Tensor, width: int) -> Tensor:
    """Where the row of each question begins in a flat table."""
    return torch.arange(table.shape[0], device=table.device) * width


def stacked(rows: Sequence[Array], fill: float | None = None) -> Tensor:
    """Rows of several lengths as one float64 table: padded with `fill`, or with the last entry of each."""
    longest = max(len(row) for row in rows)
    return torch.from_numpy(
        np.stack(
            [
                np.pad(row.astype(np.float64), (0, longest - len(row)), "edge")
                if fill is None
                else np.pad(row.astype(np.float64), (0, longest - len(row)), constant_values=fill)
                for row in rows
            ]
        )
    )


def step_table(edges: Sequence[Array], levels: Sequence[Array]) -> dict[str, Tensor]:
    """The state of a map of steps: inner edges, and one level more than edges for each question."""
    return {"edges": stacked(edges, _BEYOND), "levels": stacked(levels)}
