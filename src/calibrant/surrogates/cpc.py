"""Calibration by pairwise constraints: every pair of classes as a binary problem of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid

from calibrant.core.registry import register
from calibrant.surrogates.surrogate import BatchLoss, check_between

CLASSES = 16  # rows of a block of pairs
CPU_BLOCK, DEVICE_BLOCK = 1 << 17, 1 << 21  # elements of a block: one fits a cache, the other fills a device


@register("penalties", "cpc", paper="cheng2022cpc")
@dataclass(frozen=True)
class CPC(BatchLoss):
    r"""Pairwise constraints: the true class wins each binary problem, and two wrong classes are even.

    `discrimination` times $\frac1{K-1} \sum_{j \ne y} -\ln \frac{p_y}{p_y + p_j}$ plus `exclusion` times the mean over
    wrong pairs $i, j$ of the cross-entropy of $p_i / (p_i + p_j)$ to 1/2 minus $\ln 2$: $\ln \cosh\frac{z_i - z_j}2$.
    With K = 2 it is cross-entropy. Exclusion is 0 exactly if all wrong classes are alike: beside cross-entropy it
    acts like label smoothing, and it unlearns which classes are similar. Discrimination, like cross-entropy, is
    never 0. It is no calibration error. Exclusion takes N K K operations, in blocks, and N K memory.
    *Deviation:* defined from the paper's two constraints; no reference implementation is public.
    """

    discrimination: float = 1.0
    exclusion: float = 1.0
    vanishes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_between("discrimination", self.discrimination, 0, 1e6)
        check_between("exclusion", self.exclusion, 0, 1e6)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        wrong = torch.arange(logits.shape[1] - 1, device=logits.device)
        others = logits.gather(1, wrong + (wrong >= labels[:, None]).long())
        total = self.discrimination * -logsigmoid(logits.gather(1, labels[:, None]) - others).mean()
        if self.exclusion and logits.shape[1] > 2:
            total = total + self.exclusion * mean_log_cosh(others).mean()
        return total


def mean_log_cosh(values: Tensor) -> Tensor:
    """The mean over all pairs of columns of ln cosh((v_i - v_j) / 2), for each row [N]."""
    columns = values.shape[1]
    result: Tensor = _PairSum.apply(values)  # type: ignore[no-untyped-call]
    return result / (columns * (columns - 1) / 2)


def _blocks(values: Tensor) -> Iterator[tuple[slice, int, int]]:
    """Some rows, and a range of columns to be paired with all columns from its beginning on."""
    n, k = values.shape
    size = CPU_BLOCK if values.device.type == "cpu" else DEVICE_BLOCK
    columns = min(CLASSES, k)
    rows = max(1, size // (columns * k))
    for row in range(0, n, rows):
        for start in range(0, k, columns):
            yield slice(row, row + rows), start, min(start + columns, k)


def _differences(values: Tensor, start: int, stop: int) -> Tensor:
    return values[:, start:stop, None] - values[:, None, start:]


def _add_antisymmetric(out: Tensor, pairs: Tensor, start: int, stop: int) -> None:
    """Add sum_j t_ij to column i, where t_ji = -t_ij and the block has each pair outside its square once."""
    out[:, start:stop] += pairs.sum(2)
    out[:, stop:] -= pairs[:, :, stop - start :].sum(1)


class _PairSum(Function):
    """Sum over pairs of ln cosh((v_i - v_j) / 2); what is kept for the gradient is `values` alone."""

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        out = values.new_zeros(len(values))
        for rows, start, stop in _blocks(values):
            gap = _differences(values[rows], start, stop).abs_()
            pairs = gap.neg().exp_().log1p_().add_(gap, alpha=0.5).sub_(math.log(2))
            out[rows] += pairs.sum((1, 2)) - pairs[:, :, : stop - start].sum((1, 2)) / 2
        return out.clamp_(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        result: Tensor = _PairGradient.apply(ctx.saved_tensors[0], grads[0])  # type: ignore[no-untyped-call]
        return result


class _PairGradient(Function):
    """The gradient of `_PairSum`, sum_j tanh((v_i - v_j) / 2) / 2, times a factor for each row."""

    @staticmethod
    def forward(values: Tensor, factor: Tensor) -> Tensor:
        return factor[:, None] * _half_tanh(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        values, factor = ctx.saved_tensors
        along = grads[0].contiguous()
        out = torch.zeros_like(values)
        for rows, start, stop in _blocks(values):
            slope = _differences(values[rows], start, stop).div_(2).tanh_().square_().neg_().add_(1)
            _add_antisymmetric(out[rows], slope.mul_(_differences(along[rows], start, stop)), start, stop)
        return factor[:, None] * out / 4, (along * _half_tanh(values)).sum(1)


def _half_tanh(values: Tensor) -> Tensor:
    out = torch.zeros_like(values)
    for rows, start, stop in _blocks(values):
        pairs = _differences(values[rows], start, stop).div_(2).tanh_()
        _add_antisymmetric(out[rows], pairs, start, stop)
    return out.div_(2)
