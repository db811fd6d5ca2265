"""The soft-binned ECE of Karandikar et al."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calibrant.core.binning import check_bins
from calibrant.core.registry import register
from calibrant.core.soft import log_soft_bins, root, top_label
from calibrant.surrogates.surrogate import BatchLoss, check_between


@register("penalties", "sb_ece", paper="karandikar2021")
@dataclass(frozen=True)
class SoftBinnedECE(BatchLoss):
    r"""Soft-binned ECE: lowers confidence in bins that are too confident, where each row is in every bin a little.

    $(\sum_b \frac{n_b}{N} |g_b|^p)^{1/p}$ with $q_{ib} = \mathrm{softmax}_b(-(c_i - m_b)^2 / T)$, $m_b$ the middle of
    a bin, $n_b = \sum_i q_{ib}$ and $g_b = \sum_i q_{ib} (c_i - a_i) / n_b$; correctness $a$ is a constant. With
    $T \to 0$ and $p = 1$ it is ECE, with $p = 2$ its root mean square. Softer bins smear gaps of opposite sign into
    each other; one bin only sees mean confidence minus accuracy.
    *Deviation:* no floor of 1e-5 under the mass of a bin: an empty bin has a mean, and no weight.
    """

    bins: int = 15
    temperature: float = 0.01
    p: float = 2.0

    def __post_init__(self) -> None:
        check_bins(self.bins)
        check_between("temperature", self.temperature, 1e-9, 1e3)
        check_between("p", self.p, 1, 100)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        confidence, correct = top_label(logits, labels)
        logs = log_soft_bins(confidence, self.bins, self.temperature)
        share = logs.exp().mean(0)
        weights = logs.softmax(0)  # over the rows: a mean in each bin, and no empty bin divides by 0
        gap = ((confidence - correct)[:, None] * weights).sum(0)
        return root((share * gap.abs().pow(self.p)).sum(), self.p)
