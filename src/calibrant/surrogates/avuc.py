"""Accuracy versus uncertainty: right rows should be certain and wrong rows uncertain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.core.registry import register
from calibrant.core.soft import entropy, top_label
from calibrant.surrogates.surrogate import BatchLoss, check_between

FLOOR = 1e-5  # under the sum of what agrees, as in the definition


@register("penalties", "avuc", paper="krishnan2020avuc")
@dataclass(frozen=True)
class AvUC(BatchLoss):
    r"""Accuracy versus uncertainty: raises entropy where the model is wrong and lowers it where it is right.

    $\ln(1 + (n_{AU} + n_{IC}) / (n_{AC} + n_{IU}))$, a row certain if $H < f \ln K$ with $f$ the `threshold`;
    $n_{AU} = \sum c \tanh H$ over right and uncertain rows, $n_{AC} = \sum c (1 - \tanh H)$ right and certain,
    $n_{IC} = \sum (1 - c)(1 - \tanh H)$ wrong and certain, $n_{IU} = \sum (1 - c) \tanh H$ wrong and uncertain.
    It is no calibration error: 0 needs all right rows certain and all wrong ones not, and scaling the logits up
    lowers it where most rows are right. The step at the threshold has no gradient. `detach` keeps $c$ constant.
    *Deviation:* a fixed `threshold`, where the paper tunes one; `eps=1e-5` mixes in the uniform before $H$.
    """

    threshold: float = 0.5
    eps: float = 0.0
    detach: bool = False
    vanishes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_between("threshold", self.threshold, 0, 1)
        check_between("eps", self.eps, 0, 0.5)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        confidence, correct = top_label(logits, labels)
        confidence = confidence.detach() if self.detach else confidence
        spread = entropy(logits, self.eps)
        certain = (spread < self.threshold * math.log(logits.shape[1])).to(logits.dtype)
        weight = correct * confidence + (1 - correct) * (1 - confidence)
        return _odds(spread, weight * certain, weight * (1 - certain), correct)


@register("penalties", "s_avuc", paper="karandikar2021")
@dataclass(frozen=True)
class SoftAvUC(BatchLoss):
    r"""Soft accuracy versus uncertainty: `avuc` with a smooth step from certain to uncertain.

    $\ln(1 + (n_{AU} + n_{IC}) / (n_{AC} + n_{IU}))$ with $e = H / \ln K$ and the uncertainty
    $q = \sigma(\ln(\frac{e}{1 - e} \frac{1 - \kappa}{\kappa}) / T)$: $n_{AU} = \sum q \tanh H$ and
    $n_{AC} = \sum (1 - q)(1 - \tanh H)$ over right rows, $n_{IC}$ and $n_{IU}$ the same terms over wrong ones.
    With $T \to 0$ a row is uncertain exactly if $e > \kappa$. Like `avuc` it is no calibration error: it ranks, and
    scaling the logits up lowers it where most rows are right. One row dominates if all are wrong and certain.
    *Deviation:* published code mixes 1e-5 of the uniform into the softmax before $H$: `eps=1e-5`.
    """

    kappa: float = 0.1
    temperature: float = 0.1
    eps: float = 0.0
    vanishes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_between("kappa", self.kappa, 1e-6, 1 - 1e-6)
        check_between("temperature", self.temperature, 1e-6, 1e3)
        check_between("eps", self.eps, 0, 0.5)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        _, correct = top_label(logits, labels)
        spread = entropy(logits, self.eps)
        limits = torch.finfo(logits.dtype)
        share = (spread / math.log(logits.shape[1])).clamp(limits.tiny**0.5, 1 - limits.eps)
        excess = share.log() - (-share).log1p() - math.log(self.kappa / (1 - self.kappa))
        uncertain = (excess / self.temperature).sigmoid()
        return _odds(spread, 1 - uncertain, uncertain, correct)


def _odds(spread: Tensor, certain: Tensor, uncertain: Tensor, correct: Tensor) -> Tensor:
    """ln(1 + what disagrees / what agrees): right rows agree by certainty, wrong ones by uncertainty."""
    hot = uncertain * spread.tanh()
    cold = certain * (1 - spread.tanh())
    against = (correct * hot + (1 - correct) * cold).sum()
    agrees = (correct * cold + (1 - correct) * hot).sum()
    return (against / agrees.clamp_min(FLOOR)).log1p()
