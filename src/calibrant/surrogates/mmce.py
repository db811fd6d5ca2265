"""Maximum mean calibration error: a kernel two-sample distance between confidence and correctness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.core.registry import register
from calibrant.core.soft import laplace_form, root, top_label
from calibrant.surrogates.surrogate import BatchLoss, check_between


@register("penalties", "mmce", paper="kumar2018mmce")
@dataclass(frozen=True)
class MMCE(BatchLoss):
    r"""Maximum mean calibration error: penalises confidence minus correctness that neighbours share in sign.

    $\sqrt{\frac1{N^2} \sum_{ij} (a_i - c_i)(a_j - c_j) e^{-|c_i - c_j| / w}}$, $w$ the width, correctness $a$ constant.
    A very broad kernel gives |mean accuracy - mean confidence|, a narrow one the root mean square of $a - c$ over
    $\sqrt N$. On infinitely many rows it is 0 exactly if calibrated, on a calibrated batch of the order $N^{-1/2}$;
    the root makes the gradient's size independent of how small the error is.
    *Deviation:* the published code takes no root: `squared=True`.
    """

    width: float = 0.4
    squared: bool = False

    def __post_init__(self) -> None:
        check_between("width", self.width, 1e-5, 1e6)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        confidence, correct = top_label(logits, labels)
        residual = (correct - confidence)[:, None] / len(logits)
        square = laplace_form(confidence, residual, self.width)[0, 0].clamp_min(0)
        return square if self.squared else root(square)


@register("penalties", "mmce_weighted", paper="kumar2018mmce")
@dataclass(frozen=True)
class WeightedMMCE(BatchLoss):
    r"""MMCE with right and wrong rows averaged apart, so that the few wrong rows of a good model count as much.

    $\sqrt{u^\top K u}$ with $K_{ij} = e^{-|c_i - c_j| / w}$ and $u_i = (1 - c_i) / m$ for the $m$ right rows,
    $u_i = -c_i / n$ for the $n$ wrong ones; 0 if either group is empty. At $m = n$ it is twice `mmce`. It is no
    calibration error: unless half of the rows are right, a calibrated model has a value above 0, because
    $E[a (1 - c) | c] = E[(1 - a) c | c]$ is divided by different sizes.
    *Deviation:* the published code divides each mean by its group size once more, which makes the value smaller by
    about the batch size: `extra_norm=True`; `squared=True` leaves out the root.
    """

    width: float = 0.4
    squared: bool = False
    extra_norm: bool = False
    vanishes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_between("width", self.width, 1e-5, 1e6)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        confidence, correct = top_label(logits, labels)
        right = correct.sum()
        wrong = len(logits) - right
        residual = correct - confidence
        shares = torch.stack([correct / right.clamp_min(1), (1 - correct) / wrong.clamp_min(1)], 1)
        sides = residual[:, None] * shares
        form = laplace_form(confidence, sides, self.width)
        if self.extra_norm:
            sizes = torch.stack([right, wrong])
            form = form / (sizes[:, None] * sizes + 1e-5)
        square = form.sum().clamp_min(0)
        if self.extra_norm:
            square = square + 1e-10
        square = torch.where(right * wrong > 0, square, 0)
        return square if self.squared else root(square)
