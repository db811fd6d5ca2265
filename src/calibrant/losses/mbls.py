"""Margin-based label smoothing: logits may be apart, but not by more than a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

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
        return nll.add(self.kept(self.excess(logits), labels), alpha=self.alpha)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        nll = -(log_probs(logits) * weighted(targets, weight)).sum(1)
        rows = 1 if weight is None else weighted(targets, weight).sum(1)
        return nll + self.alpha * rows * self.excess(logits)

    def excess(self, logits: Tensor) -> Tensor:
        """How far the logits of each row lie beyond the margin, in all [N]."""
        total = beyond(logits, self.margin)
        return total / logits.shape[1] if self.over == "mean" else total


def beyond(logits: Tensor, margin: float) -> Tensor:
    """sum_k max(0, max_j z_j - z_k - margin); the gradient is -1 where that is positive, their number at the top."""

    def plain(z: Tensor) -> Tensor:
        return (z.max(1, keepdim=True).values - margin - z).relu().sum(1)

    def quick(z: Tensor) -> tuple[Tensor, VJP]:
        top, at = z.max(1, keepdim=True)
        gap = (top - margin).sub(z).relu_()
        total = gap.sum(1)
        active = gap.sign_()
        grad = active.neg().scatter_add_(1, at, active.sum(1, keepdim=True))
        return total, lambda g: grad * g[:, None]

    return fused(logits, quick, plain)
