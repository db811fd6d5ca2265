"""Dual focal loss: the focal factor looks at the strongest rival of the label, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.pointwise import VJP, fused, is_soft, negative_log_likelihood
from calibrant.core.registry import register
from calibrant.losses.focal import check_gamma
from calibrant.losses.target import TargetLoss


@register("losses", "dual_focal", paper="tao2023dual")
@dataclass(frozen=True)
class DualFocal(TargetLoss):
    r"""Dual focal loss: like `focal`, but a row keeps its weight while a rival is close behind the label.

    $-(1 - p_y + p_j)^\gamma \ln p_y$ with $p_j = \max\{p_k : p_k < p_y\}$, 0 if there is none. Gamma 0 is `ce`; where
    the label is the smallest class it is `focal`. By asking for a gap between the first two it balances the
    underconfidence of a large gamma. The loss jumps where another class overtakes the label, since $p_j$ is then the
    next one below. Labels are class indices only: with soft targets there is no one rival. `detach_rival` makes $p_j$
    a constant for the gradient; it is attached by default.
    *Deviation:* mean, where the reference sums over the batch.
    """

    gamma: float = 5.0
    detach_rival: bool = False
    targets: ClassVar[str] = "class indices"
    drawn: ClassVar[tuple[str, ...]] = ("dual_focal(gamma=5)", "dual_focal(gamma=2)")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.gamma == 0:
            return negative_log_likelihood(logits, labels, self.ignore_index)
        label = self.present(labels)[:, None]
        with torch.no_grad():
            # 1 / (z_k - z_y) is most negative for the class just below the label, and +inf for the label itself
            below, rival = (logits - logits.gather(1, label)).reciprocal_().min(1, keepdim=True)
            exists = below[:, 0] < 0
        pair = logits.log_softmax(1).gather(1, torch.cat([label, rival], 1))
        rows = dual(pair, exists, self.gamma, self.detach_rival)
        return self.kept(rows, labels)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        raise CalibrantError("dual_focal needs class indices as labels; with soft targets use focal")

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        if is_soft(labels):
            self.soft(logits, labels, None)
        return super().per_sample(logits, labels)


def dual(pair: Tensor, exists: Tensor, gamma: float, detach: bool) -> Tensor:
    """-(1 - p_y + p_j)^gamma ln p_y from the columns ln p_y, ln p_j; p_j is 0 where no rival exists."""
    floor = torch.finfo(pair.dtype).tiny ** 0.5

    def base(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rival, minus = x[:, 1].exp() * exists, torch.expm1(x[:, 0])
        b = rival - minus
        return (b.clamp_min(floor) if gamma < 2 and gamma != 1 else b), minus + 1, rival

    def plain(x: Tensor) -> Tensor:
        b, _, _ = base(torch.stack([x[:, 0], x[:, 1].detach()], 1) if detach else x)
        return -(b**gamma) * x[:, 0]

    def slope(x: Tensor) -> tuple[Tensor, VJP]:
        b, p, rival = base(x)
        nll = -x[:, 0]
        power = b ** (gamma - 1)
        factor = power * b
        rising = power * nll  # times gamma: the derivative of the loss through the base
        by_label = torch.addcmul(factor, rising, p, value=gamma)
        by_rival = torch.zeros_like(rival) if detach else rising * rival * -gamma
        grad = torch.stack([by_label, by_rival], 1)
        return factor * nll, lambda g: grad * -g[:, None]

    return fused(pair, slope, plain)
