"""Margin-based label smoothing: logits may be apart, but not by more than a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.pointwise import VJP, fused, log_probs, negative_log_likelihood
from calibrant.core.registry import register
from calibrant.losses.target import TargetLoss, weighted


@register("losses", "mbls", paper="liu2022mbls")
@dataclass(frozen=True)
class MbLS(TargetLoss):
    r"""Cross-entropy with a margin: logits further than `margin` below the largest are pulled up, others left alone.

    $-\ln p_y + \alpha \sum_k \max(0, \max_j z_j - z_k - m)$. Alpha 0 or a margin that is never reached is `ce`; with
    margin 0 it punishes all distances, as `label_smoothing` does. Confidence is bounded by the margin, softly: at
    m = 10 hardly, at m = 6 by about $1 / (1 + (K - 1) e^{-6})$. The sum grows with K, and so does what alpha means;
    it fails (accuracy falls) when the margin is smaller than what separates the classes. A class masked by -inf makes
    it infinite. *Deviation:* `over="mean"` divides by K, as the released code does; the paper has a sum.
    """

    margin: float = 10.0
    alpha: float = 0.1
    over: Literal["sum", "mean"] = "sum"
    drawn: ClassVar[tuple[str, ...]] = ("mbls(margin=10)", "mbls(margin=6)", "mbls(margin=2)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.margin >= 0:
            raise CalibrantError(f"margin must be at least 0, not {self.margin:g}")

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        nll = negative_log_likelihood(logits, labels, self.ignore_index)
        if self.alpha == 0:
            return nll
        rows = beyond(logits, self.margin, labels == self.ignore_index)
        return nll.add(rows, alpha=self.alpha * self.terms(logits))

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        nll = -(log_probs(logits) * weighted(targets, weight)).sum(1)
        rows = 1 if weight is None else weighted(targets, weight).sum(1)
        return nll + self.alpha * rows * self.excess(logits)

    def excess(self, logits: Tensor) -> Tensor:
        """How far the logits of each row lie beyond the margin, in all or on average [N]."""
        return beyond(logits, self.margin) * self.terms(logits)

    def terms(self, logits: Tensor) -> int:
        """How often the mean over classes counts: K times to be their sum."""
        return 1 if self.over == "mean" else logits.shape[1]


def beyond(logits: Tensor, margin: float, ignored: Tensor | None = None) -> Tensor:
    """The mean over k of max(0, max_j z_j - z_k - margin) in each row [N], and 0 in ignored ones."""

    def plain(z: Tensor) -> Tensor:
        rows = (z.max(1, keepdim=True).values - margin - z).relu().mean(1)
        return rows if ignored is None else rows.masked_fill(ignored, 0)

    quick = by_kernel if logits.is_cuda else by_passes
    return fused(logits, lambda z: quick(z, margin, ignored), plain)


def by_passes(z: Tensor, margin: float, ignored: Tensor | None) -> tuple[Tensor, VJP]:
    """`beyond` in passes over [N, K]; the gradient is -1/K beyond the margin, and their number over K at the top."""
    top, at = z.max(1, keepdim=True)
    gap = (top - margin).sub(z).relu_()
    rows = _drop(gap.mean(1), ignored)
    active = gap.sign_()
    grad = active.neg().scatter_add_(1, at, active.sum(1, keepdim=True))
    return rows, lambda g: grad * _drop(g / z.shape[1], ignored)[:, None]


def by_kernel(z: Tensor, margin: float, ignored: Tensor | None) -> tuple[Tensor, VJP]:
    """`beyond` as torch's margin loss of -z, whose label is the top and whose margin is negative.

    Four passes over [N, K], of which one a direction is the loss, instead of eight; on a CPU the eight are faster.
    """
    below, top = -z, z.argmax(1)
    rows = torch.ops.aten.multi_margin_loss(below, top, 1, -margin, None, 0)

    def vjp(g: Tensor) -> Tensor:
        slope = _drop(-g, ignored)
        grad: Tensor = torch.ops.aten.multi_margin_loss_backward(slope, below, top, 1, -margin, None, 0)
        return grad

    return _drop(rows, ignored), vjp


def _drop(rows: Tensor, ignored: Tensor | None) -> Tensor:
    """Rows, with 0 put in place of those that are ignored, whatever stood there."""
    return rows if ignored is None else rows.masked_fill_(ignored, 0)
