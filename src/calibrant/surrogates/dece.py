"""The differentiable ECE of Bohdal et al., the meta-objective of the code that document 000 extends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calibrant.core.binning import check_bins
from calibrant.core.registry import register
from calibrant.core.soft import all_pairs_accuracy, log_soft_bins, top_label
from calibrant.surrogates.surrogate import BatchLoss, check_between


@register("surrogates", "dece", paper="bohdal2021")
@dataclass(frozen=True)
class DECE(BatchLoss):
    r"""Differentiable ECE: closes the gap of accuracy and confidence in soft bins, accuracy by a soft rank.

    $\frac1N \sum_b |\sum_i q_{ib} (s_i - c_i)|$ with $q_i = \mathrm{softmax}_b(((b+1) c_i - b(b+1)/2B) / t_b)$ and
    $s_i = \max(0, 1 - \sum_{k \ne y} \sigma(t_a (p_k - p_y)))$; $t_a$ is `t_acc`, $t_b$ `t_bin`. With $t_a \to \infty$
    and $t_b \to 0$ it is ECE with the same bins; the bins are those of `sb_ece` at temperature $2 t_b / B$. Like ECE
    it is biased upwards on small batches. Accuracy has no gradient where another class clearly leads.
    *Deviation:* costs N K, where the published code builds N x K x K; that code also adds 1e-6 to each $q$
    and divides by $1 + (B+1)$ 1e-6: `eps=1e-6`.
    """

    bins: int = 15
    t_acc: float = 100.0
    t_bin: float = 0.01
    eps: float = 0.0

    def __post_init__(self) -> None:
        check_bins(self.bins)
        check_between("t_acc", self.t_acc, 1e-3, 1e9)
        check_between("t_bin", self.t_bin, 1e-9, 1e3)
        check_between("eps", self.eps, 0, 0.1)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        confidence, _ = top_label(logits, labels)
        gap = all_pairs_accuracy(logits, labels, self.t_acc) - confidence
        members = log_soft_bins(confidence, self.bins, 2 * self.t_bin / self.bins).exp()
        if self.eps:
            members = (members + self.eps) / (1 + (self.bins + 1) * self.eps)
        return (gap[:, None] * members).sum(0).abs().sum() / len(logits)
