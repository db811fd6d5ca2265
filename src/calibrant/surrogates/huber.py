"""The Huber term between mean confidence and accuracy."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import huber_loss

from calibrant.core.registry import register
from calibrant.core.soft import top_label
from calibrant.surrogates.surrogate import BatchLoss, check_between


@register("penalties", "huber", paper="patra2023")
@dataclass(frozen=True)
class Huber(BatchLoss):
    r"""Huber term: moves the mean confidence of the batch to its accuracy, with a force that is bounded.

    $h_\delta(\bar c - \bar a)$ with $h_\delta(x) = x^2 / 2$ for $|x| \le \delta$ and $\delta (|x| - \delta / 2)$ else;
    correctness is a constant. With $\delta \ge 1$ it is half the squared gap; divided by $\delta \to 0$ it is the gap
    itself, ECE with one bin. It is blind to errors that cancel within the batch, and the gap of a small batch is
    mostly sampling.
    *Deviation:* document 000 cites it for its table alone; the default of `delta` is our choice, and small, so a
    weight of $1/\delta$ is what makes it comparable to other penalties.
    """

    delta: float = 0.005

    def __post_init__(self) -> None:
        check_between("delta", self.delta, 1e-9, 1e3)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        confidence, correct = top_label(logits, labels)
        return huber_loss(confidence.mean(), correct.mean(), delta=self.delta)
