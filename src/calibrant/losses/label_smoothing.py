"""Label smoothing: some of the target goes to the classes that are not the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.pointwise import check_batch, class_weights, is_soft, widen
from calibrant.core.registry import register
from calibrant.losses.target import TargetLoss, weighted


@register("losses", "label_smoothing", paper="szegedy2016")
@dataclass(frozen=True)
class LabelSmoothing(TargetLoss):
    r"""Cross-entropy against softened labels, which asks for a confidence of 1 - epsilon and punishes more.

    $-\sum_k q_k \ln p_k$ with $q = (1 - \epsilon)\,\mathrm{onehot}(y) + \epsilon / K$, as in torch. Epsilon 0 is
    `ce`, 1 forgets the labels, and below 0 it rewards overconfidence: document 002 tries that, and the loss has no
    lower bound then. It lowers the raw error of confidences by erasing how sure the network was of each row, so that
    recalibration has less to work with. A class masked by -inf has an infinite loss, as its definition says.
    *Deviation:* `over="others"` gives $\epsilon / (K - 1)$ to each wrong class and none of it to the label, which
    some repositories mean by the same name.
    """

    epsilon: float = 0.05
    over: Literal["all", "others"] = "all"
    drawn: ClassVar[tuple[str, ...]] = (
        "label_smoothing(epsilon=0.05)",
        "label_smoothing(epsilon=0.2)",
        "label_smoothing(epsilon=-0.05)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -1 < self.epsilon <= 1:
            raise CalibrantError(f"epsilon must lie above -1 and up to 1, not {self.epsilon:g}")

    def share(self, classes: int) -> float:
        """How much of the target is spread over all classes, the label included."""
        return self.epsilon if self.over == "all" else self.epsilon * classes / (classes - 1)

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._hard(logits, labels, None)

    def _hard(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        log_p, share = logits.log_softmax(1), self.share(logits.shape[1])
        nll = F.nll_loss(log_p, labels, weight, reduction="none", ignore_index=self.ignore_index)
        if share == 0:
            return nll
        if weight is not None:
            return (1 - share) * nll - share * self.kept((log_p * weight).mean(1), labels)
        return self.kept(torch.lerp(nll, -log_p.mean(1), share), labels)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        share = self.share(logits.shape[1])
        smooth = (1 - share) * targets + share / logits.shape[1]
        return -(logits.log_softmax(1) * weighted(smooth, weight)).sum(1)

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.weight is None or is_soft(labels):
            return super().per_sample(logits, labels)
        check_batch(logits, labels)  # weights belong to the classes that the target is spread over
        z = widen(logits)
        return self._hard(z, labels, class_weights(self.weight, z))
