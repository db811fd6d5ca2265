"""The focal family: cross-entropy times a power of how far the true class's probability is from 1 (or from -1)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.pointwise import log_probs, modulated, modulating_factor, negative_log_likelihood
from calibrant.core.registry import register
from calibrant.losses.target import TargetLoss, weighted

MONOTONE = 3.591121476669
"""Up to here the attached inverse focal loss falls with p: 1 / max_p of p (-ln p) / (1 + p)."""


@register("losses", "focal", paper="lin2017focal")
@dataclass(frozen=True)
class Focal(TargetLoss):
    r"""Focal loss: rows that are already right count less, so that logits stop growing and confidence falls.

    $-(1 - p_y)^\gamma \ln p_y$; gamma 0 is `ce`. It bounds $\mathrm{CE} - \gamma H(p)$ from above, so it acts like a
    reward for entropy. It is no proper score: the minimum lies below the true posterior, and a large gamma ends in
    underconfidence.
    Soft targets: $-\sum_k q_k (1 - p_k)^\gamma \ln p_k$. With `detach` the factor is a constant for the gradient,
    which is then always smaller: 0.73 instead of 1.29 times that of `ce` at gamma 3, p = 0.1.
    *Deviation:* mean, where the reference sums over the batch.
    """

    gamma: float = 1.0
    detach: bool = False
    drawn: ClassVar[tuple[str, ...]] = ("focal(gamma=1)", "focal(gamma=3)", "focal(gamma=3, detach=True)")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        nll = negative_log_likelihood(logits, labels, self.ignore_index)
        return modulating_factor(nll, self.gamma) * nll if self.detach else modulated(nll, self.gamma)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        nll = -log_probs(logits)
        rows = modulating_factor(nll, self.gamma) * nll if self.detach else modulated(nll, self.gamma)
        return (rows * weighted(targets, weight)).sum(1)


@register("losses", "inverse_focal", paper="wang2021rethinking")
@dataclass(frozen=True)
class InverseFocal(TargetLoss):
    r"""Inverse focal loss: rows that are already right count more, which sharpens confidence further.

    $-(1 + p_y)^{\bar\gamma} \ln p_y$; gamma 0 is `ce`. It makes networks more overconfident and easier to recalibrate:
    the order of the rows is kept, and a temperature above 1 does the rest (document 002). Without post-hoc
    calibration it is the wrong choice. Attached (the literal formula), its gradient is smaller than that of `ce` at
    small p, and above gamma 3.59 the loss *rises* with p somewhere: a warning says so. With `detach` the factor is a
    constant for the gradient, which then is larger than that of `ce` everywhere. Soft targets as in `focal`.
    """

    gamma: float = 1.0
    detach: bool = False
    drawn: ClassVar[tuple[str, ...]] = (
        "inverse_focal(gamma=1)",
        "inverse_focal(gamma=3)",
        "inverse_focal(gamma=3, detach=True)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)
        if self.gamma > MONOTONE and not self.detach:
            warnings.warn(
                f"inverse_focal(gamma={self.gamma:g}) rises with p somewhere, so it pulls some right rows down;"
                f" stay below {MONOTONE:.2f} or set detach=True",
                stacklevel=3,
            )

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        nll = negative_log_likelihood(logits, labels, self.ignore_index)
        return (
            modulating_factor(nll, self.gamma, True) * nll
            if self.detach
            else modulated(nll, self.gamma, True)
        )

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        nll = -log_probs(logits)
        rows = (
            modulating_factor(nll, self.gamma, True) * nll
            if self.detach
            else modulated(nll, self.gamma, True)
        )
        return (rows * weighted(targets, weight)).sum(1)


@register("losses", "flsd53", paper="mukhoti2020")
@dataclass(frozen=True)
class FLSD53(TargetLoss):
    r"""Sample-dependent focal loss: gamma 5 for rows below p = 0.2, gamma 3 for the others.

    $-(1 - p_y)^{\gamma(p_y)} \ln p_y$, $\gamma(p) = 5$ if $p < 0.2$, else 3; the step is a constant for the gradient.
    With both numbers equal it is `focal`. Confidence falls as with gamma 3, and rows below 0.2 keep a gradient as
    large as that of `ce`, or up to 1.3 times it.
    The loss jumps down by 36 % where p falls below 0.2, and like any large gamma it ends underconfident on
    easy data. The two numbers come from `flsd_gamma`, rounded up. Soft targets: by each class's own p.
    *Deviation:* the released script takes a gamma that silently replaces 3 from p = 0.5 on; here nothing can.
    """

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        nll = negative_log_likelihood(logits, labels, self.ignore_index)
        return modulated(nll, _gamma_53(nll))

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        nll = -log_probs(logits)
        return (modulated(nll, _gamma_53(nll)) * weighted(targets, weight)).sum(1)


def flsd_gamma(p: float) -> float:
    r"""The gamma whose focal gradient equals that of `ce` at this p; for larger p it is then the smaller one.

    It solves $(1 - p)^\gamma - \gamma p (1 - p)^{\gamma - 1} \ln p = 1$, gamma > 0, by the Lambert W function on its
    branch -1 (Mukhoti et al. 2020). FLSD-53 is this rule at p = 0.2 and 0.25, rounded.
    """
    if not 0 < p < 0.5:
        raise CalibrantError(f"p must lie between 0 and 0.5, where the rule has a positive gamma, not {p:g}")
    from scipy.special import lambertw

    ratio = (1 - p) / (p * math.log(p))
    log_rest = math.log1p(-p)
    known = -ratio * log_rest  # the solution gamma = 0 is W on the branch 0
    return float(ratio + lambertw(known * math.exp(known), k=-1).real / log_rest)


def check_gamma(gamma: float) -> None:
    """Refuse a gamma that is no power of a focal loss."""
    if not 0 <= gamma < math.inf:
        raise CalibrantError(
            f"gamma must be finite and at least 0, not {gamma:g}; the opposite sign is inverse_focal"
        )


def _gamma_53(nll: Tensor) -> Tensor:
    with torch.no_grad():
        return (nll > -math.log(0.2)) * 2.0 + 3.0
