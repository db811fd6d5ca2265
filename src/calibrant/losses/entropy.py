"""The entropy of the predictions, to be subtracted: the confidence penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from calibrant.core.objective import Criterion
from calibrant.core.pointwise import VJP, check_batch, fused, log_probs, widen
from calibrant.core.registry import register


@register("penalties", "entropy", paper="pereyra2017")
@dataclass(frozen=True)
class Entropy(Criterion):
    r"""The entropy of the predictions: *subtracted* from a loss it rewards predictions that are unsure.

    $H(p) = -\sum_k p_k \ln p_k$ in nats, the mean over rows, between 0 and $\ln K$; use it as `ce - 0.1*entropy`.
    With a positive sign it sharpens. Its gradient vanishes both at the uniform prediction and at certain ones, so it
    does not bring back rows that are certain already (document 001 sees little effect), and it does not ask whether
    a row is right. Labels are not read: every row counts. A class masked by -inf adds 0.
    *Deviation:* `over="mean"` divides by K, as one released code does: the same coefficient is then K times weaker.
    """

    over: Literal["sum", "mean"] = "sum"
    targets: ClassVar[str] = "not read"

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The entropy of each row [N]."""
        check_batch(logits, labels)
        rows = row_entropy(widen(logits))
        return rows / logits.shape[1] if self.over == "mean" else rows

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.per_sample(logits, labels).mean()


def row_entropy(logits: Tensor) -> Tensor:
    """-sum_k p_k ln p_k of each row; its gradient is -p_k (ln p_k + H)."""

    def plain(z: Tensor) -> Tensor:
        log_p = log_probs(z)
        return -(log_p.exp() * log_p).sum(1)

    def quick(z: Tensor) -> tuple[Tensor, VJP]:
        log_p = log_probs(z)
        p = log_p.exp()
        parts = log_p.mul_(p)
        total = parts.sum(1, keepdim=True)
        grad = p.mul_(total).sub_(parts)
        return -total[:, 0], lambda g: grad * g[:, None]

    return fused(logits, quick, plain)
