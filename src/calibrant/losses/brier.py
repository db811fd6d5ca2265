"""The Brier score as a loss: squared distance in probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.registry import register
from calibrant.losses.target import TargetLoss, weighted


@register("losses", "brier", paper="brier1950")
@dataclass(frozen=True)
class Brier(TargetLoss):
    r"""Brier score: a proper score that is bounded, so a row that is wrong with certainty does not rule the batch.

    $\sum_k (p_k - q_k)^2$ with q the one-hot label or a soft target, between 0 and 2; for two classes it is twice
    $(1 - p_y)^2$. Least at the true posterior, as `ce`, and like it it overfits, but with less pull to extreme logits:
    the gradient vanishes at p = 1 and also at p = 0, so rows that are wrong with certainty are never repaired and
    training starts slowly with many classes. Class weights count rows: $w_y$, or $\sum_k q_k w_k$ for soft targets.
    *Deviation:* a sum over classes; some tools divide by K.
    """

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        target = torch.zeros_like(logits).scatter_(1, self.present(labels)[:, None], 1)
        rows = F.mse_loss(logits.softmax(1), target, reduction="none").sum(1)
        return self.kept(rows, labels)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        rows = F.mse_loss(logits.softmax(1), targets, reduction="none").sum(1)
        return rows if weight is None else rows * weighted(targets, weight).sum(1)
