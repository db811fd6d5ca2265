"""Cross-entropy: what all other losses here are measured against."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from calibrant.core.pointwise import (
    check_batch,
    class_weights,
    is_soft,
    log_probs,
    negative_log_likelihood,
    widen,
)
from calibrant.core.registry import register
from calibrant.losses.target import TargetLoss, weighted


@register("losses", "ce", paper="good1952")
@dataclass(frozen=True)
class CE(TargetLoss):
    r"""Cross-entropy, the proper score that keeps pushing confidence up after every training row is right.

    $-\ln p_y$, the mean over rows; it is `torch.nn.functional.cross_entropy`, and the negative log-likelihood. In
    expectation it is least at the true posterior, so with enough data it calibrates. A network that can fit its
    training set drives it towards 0 there instead, by ever larger logits, which shows as overconfidence on new data;
    temperature scaling undoes most of that.
    """

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        return negative_log_likelihood(logits, labels, self.ignore_index)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        return -(log_probs(logits) * weighted(targets, weight)).sum(1)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        if is_soft(labels):
            return super().__call__(logits, labels)
        check_batch(logits, labels)
        z = widen(logits)
        return F.cross_entropy(z, labels, class_weights(self.weight, z), ignore_index=self.ignore_index)
