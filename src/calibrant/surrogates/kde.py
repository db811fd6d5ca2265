"""Kernel calibration errors with a Beta or Dirichlet kernel, leave-one-out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.core.registry import register
from calibrant.core.soft import beta_log_kernel, dirichlet_log_kernel, smoothed, top_label_logs
from calibrant.surrogates.surrogate import BatchLoss, check_between


@register("surrogates", "kde_ece", paper="popordanoska2022")
@dataclass(frozen=True)
class KdeECE(BatchLoss):
    r"""Kernel calibration error: pulls each prediction to what the others of the batch say happens there.

    $\frac1N \sum_i |\hat a_{-i}(c_i) - c_i|^p$ with $\hat a_{-i}(c) = \sum_{j \ne i} w_j a_j$, weights proportional to
    the density of $\mathrm{Beta}(c_j / h + 1, (1 - c_j) / h + 1)$ at $c$, correctness $a$ a constant.
    `kernel="dirichlet"` is the canonical error: whole vectors, $\sum_k |\hat y_{-i,k} - p_{ik}|^p$ and
    $\mathrm{Dirichlet}(p_j / h + 1)$; with two classes and $p = 1$ twice the Beta one of class 1. A broad bandwidth
    compares each row with the mean. It is biased upwards on small batches, and canonically with many classes hardly
    any row has neighbours; one row gives 0.
    *Deviation:* computed from logarithms, so a confidence that rounds to 1 keeps its neighbours and its gradient.
    """

    bandwidth: float = 0.02
    kernel: Literal["beta", "dirichlet"] = "beta"
    p: float = 1.0

    def __post_init__(self) -> None:
        check_between("bandwidth", self.bandwidth, 1e-4, 10)
        check_between("p", self.p, 1, 100)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        if len(logits) == 1:
            return 0 * logits.softmax(1).sum()
        if self.kernel == "beta":
            top = top_label_logs(logits, labels)
            log_kernel = beta_log_kernel(top, self.bandwidth)
            gap = smoothed(log_kernel, top.correct, leave_one_out=True) - top.confidence
            return gap.abs().pow(self.p).mean()
        happened = torch.zeros_like(logits).scatter(1, labels[:, None], 1)
        log_kernel = dirichlet_log_kernel(logits, self.bandwidth)
        gaps = smoothed(log_kernel, happened, leave_one_out=True) - logits.softmax(1)
        return gaps.abs().pow(self.p).sum(1).mean()
