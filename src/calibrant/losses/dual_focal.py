"""Dual focal loss: the focal factor looks at the strongest rival of the label, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.pointwise import VJP, constants, fused, is_soft, negative_log_likelihood
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
        return dual(logits.log_softmax(1), labels, self.gamma, self.detach_rival, self.ignore_index)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        raise CalibrantError("dual_focal needs class indices as labels; with soft targets use focal")

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        if is_soft(labels):
            self.soft(logits, labels, None)
        return super().per_sample(logits, labels)


def dual(log_p: Tensor, labels: Tensor, gamma: float, detach: bool, ignore_index: int) -> Tensor:
    """-(1 - p_y + p_j)^gamma ln p_y of each row [N] from ln p [N, K], and 0 where the label is ignored."""
    floor = torch.finfo(log_p.dtype).tiny ** 0.5

    def base(y: Tensor, rival: Tensor) -> Tensor:
        b = rival - torch.expm1(y)
        return b.clamp_min(floor) if gamma < 2 and gamma != 1 else b

    def plain(x: Tensor) -> Tensor:
        y = -F.nll_loss(x, labels, reduction="none", ignore_index=ignore_index)[:, None]
        with torch.no_grad():
            behind, at = rival_behind(x, y)
        rival = x.gather(1, at).exp() * (behind < far(x))
        return -(base(y, rival.detach() if detach else rival) ** gamma * y)[:, 0]

    def quick(x: Tensor) -> tuple[Tensor, VJP]:
        # torch's own kernels for the label skip ignored rows; pairs of columns are one kernel where two are two
        nll, total = torch.ops.aten.nll_loss_forward(x, labels, None, 0, ignore_index)
        scaled = nll[:, None] * constants((gamma, 1, -1), x)
        y = scaled[:, 2:]  # ln p_y
        behind, at = rival_behind(x, y)
        p = torch.addcmul(y, behind, constants((0, -1), x)).exp()  # p_y, p_j
        powers = base(y, p[:, 1:]) ** constants((gamma - 1, gamma), x)
        steep, value = (powers * scaled[:, :2]).unbind(1)  # the derivative through the base, and the loss

        def vjp(g: Tensor) -> Tensor:
            through = p * (g * steep)[:, None]
            by_label = torch.addcmul(through[:, 0], g, powers[:, 1])
            grad: Tensor = torch.ops.aten.nll_loss_backward(by_label, x, labels, None, 0, ignore_index, total)
            return grad if detach else grad.scatter_add_(1, at, through[:, 1:])

        return value, vjp

    return fused(log_p, quick, plain)


def rival_behind(log_p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """How far ln p_j lies behind y = ln p_y, and where [N, 1]; `far` where no class lies behind.

    Classes whose ln p round to the same number are a tie, as equal ones are.
    """
    behind, at = F.threshold(y - log_p, 0, far(log_p), inplace=True).min(1, keepdim=True)
    return behind, at


def far(log_p: Tensor) -> float:
    """Where no rival is: so far behind that its probability is 0, yet finite, so that 0 times it is 0."""
    return torch.finfo(log_p.dtype).max / 4
