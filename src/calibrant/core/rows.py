"""A number for each row of predictions, made of its content: for folds that know no order, and to find rows again."""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = 1 << 20  # logits that are widened together


def row_keys(logits: Tensor, labels: Tensor, seed: int = 0) -> Tensor:
    """A number from 0 to 2**62 for each row: equal wherever the row stands, however it is kept, on every device.

    Float64 logits count in float32. Two rows have the same number by chance in one of some thousand million pairs.
    """
    keys = labels.to(torch.int64, copy=True)
    step = max(1, _STEP // logits.shape[1])
    place = torch.arange(1, logits.shape[1] + 1, device=logits.device) + (seed << 20)
    odd = _mixed(place) | 1
    for first in range(0, len(logits), step):
        rows = slice(first, first + step)
        keys[rows] += (bits(logits[rows]).long() * odd).sum(1)
    return (_mixed(keys) >> 1) & ((1 << 62) - 1)


def fold_of(logits: Tensor, labels: Tensor, folds: int, seed: int = 0) -> Tensor:
    """The fold of each row, by the rank of its number: what a row holds decides, not where it stands.

    Folds are of equal size, to one row. Classes are not dealt evenly: their shares in one fold would then tell those in
    another, and intercepts that follow the noise of the shares would seem to be a gain.
    """
    order = row_keys(logits, labels, seed).argsort(stable=True)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order), device=order.device) % folds
    return fold


def bits(logits: Tensor) -> Tensor:
    """Logits as the bits of float32, with one zero."""
    return (logits.float() + 0.0).contiguous().view(torch.int32)


def _mixed(values: Tensor) -> Tensor:
    """Steps that spread what differs in one bit over all of them (int64 arithmetic wraps around)."""
    values = (values ^ ((values >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    values = (values ^ ((values >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return values ^ ((values >> 31) & ((1 << 33) - 1))
