"""The smooth calibration error of document 000, as something to descend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from calibrant.core.registry import register
from calibrant.core.soft import all_pairs_accuracy, gaussian_log_kernel, smoothed, top_label
from calibrant.surrogates.surrogate import BatchLoss, check_between


@register("surrogates", "sece", paper="wang2024meta")
@dataclass(frozen=True)
class SECE(BatchLoss):
    r"""Smooth calibration error: pulls each confidence to the accuracy of the batch at about that confidence.

    $\frac1N \sum_i |\sum_j w_{ij} \pi_j - c_i|$ with Gaussian weights $w_{ij} \propto \exp(-(c_i - c_j)^2 / 2h^2)$,
    $h$ the bandwidth, and accuracy $\pi_j$ hard or $\max(0, 1 - \sum_{k \ne y} \sigma(t (p_k - p_y)))$, $t$ = `t_acc`.
    A bandwidth near 0 gives the mean of $|\pi - c|$, a broad one that of $|\bar\pi - c|$: $|\bar\pi - \bar c|$ if all
    $c$ are on one side. Not unbiased: at N = 128 a calibrated model shows 0.1 and more. Soft accuracy has no gradient
    where another class clearly leads.
    *Deviation:* equation 12 of the paper; its equation 5 lacks the normalisation and grows with N.
    """

    bandwidth: float = 0.01
    accuracy: Literal["all-pairs", "hard"] = "all-pairs"
    leave_one_out: bool = False
    t_acc: float = 100.0

    def __post_init__(self) -> None:
        check_between("bandwidth", self.bandwidth, 1e-5, 10)
        check_between("t_acc", self.t_acc, 1e-3, 1e9)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        confidence, hits = top_label(logits, labels)
        if len(logits) == 1 and self.leave_one_out:
            return 0 * confidence.sum()
        if self.accuracy == "all-pairs":
            hits = all_pairs_accuracy(logits, labels, self.t_acc)
        kernel = gaussian_log_kernel(confidence, self.bandwidth)
        return (smoothed(kernel, hits, leave_one_out=self.leave_one_out) - confidence).abs().mean()
