"""Multi-class difference of confidence and accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.registry import register
from calibrant.surrogates.surrogate import BatchLoss


@register("penalties", "mdca", paper="hebbalaguppe2022")
@dataclass(frozen=True)
class MDCA(BatchLoss):
    r"""MDCA: moves the mean probability of every class to the share of the batch that has this class.

    $\frac1K \sum_k |\frac1N \sum_i p_{ik} - \frac1N \sum_i 1[y_i = k]|$. A single row gives $\frac2K (1 - p_y)$. It is
    classwise ECE with one bin, so it sees only the marginal of each class: a model that gives every row the class
    frequencies has the value 0, and so has one whose errors cancel between rows. It shrinks as 1/K, so that
    weights do not carry over between data sets.
    """

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        ones = torch.ones_like(labels, dtype=logits.dtype)
        total = logits.softmax(1).sum(0).index_add(0, labels, ones, alpha=-1)
        return total.abs().mean() / len(logits)
