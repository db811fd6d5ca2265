"""Platt scaling: a sigmoid of the logit of each class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.calibrators.logistic_fit import ask, fit_logistic
from calibrant.calibrators.odds import log_odds, log_sigmoid, no_worse
from calibrant.core.calibration import Calibrator, Scope, Shape, State
from calibrant.core.numerics import working_dtype
from calibrant.core.registry import register


@register("calibrators", "platt", paper="platt1999")
@dataclass(frozen=True)
class Platt(Calibrator):
    r"""A sigmoid of the logit of each class against the rest, fitted class by class and renormalised.

    $q_k = \sigma(A_k s_k + B_k)$, $s_k = \ln \frac{p_k}{1 - p_k}$, $p'_k = q_k / \sum_j q_j$. With two classes it is
    one fit of $s = z_1 - z_0$, and with A = 1, B = 0 `identity`. The predicted class may change. Where a score parts a
    class from the rest without error, or `smooth` is set, targets are Platt's $(n_1 + 1) / (n_1 + 2)$ and
    $1 / (n_0 + 2)$. A class without a label keeps its logit. Should the result be worse on the rows of the fit than
    the logits were, it goes back half of the way, and again; not so with `smooth`. *Deviation:* scores are log-odds
    and not raw logits, to which any number may be added.
    """

    smooth: bool = False

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return False

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        log_p, rest, seen = log_odds(logits.double())
        first = 1 if logits.shape[1] == 2 else 0
        score, seen = (log_p - rest)[:, first:], seen.all(1, keepdim=True) if first else seen
        hits = labels[:, None] == torch.arange(first, logits.shape[1], device=labels.device)
        identity = torch.tensor([1.0, 0.0], dtype=torch.float64, device=logits.device)
        theta = fit_logistic(ask([score], hits, seen.expand_as(hits), self.smooth), identity)
        if not self.smooth:
            theta = no_worse(theta, identity, lambda t: self.apply(_state(t), logits), logits, labels)
        return _state(theta)

    def apply(self, state: State, logits: Tensor) -> Tensor:
        z = logits.double()  # a weight may be 50, and what is rounded before it is rounded 50 times as much
        log_p, rest, seen = log_odds(z)
        eta = (log_p - rest) * state["weight"].to(z) + state["bias"].to(z) * _side(z)
        return torch.where(seen, log_sigmoid(eta), -torch.inf).to(working_dtype(logits.dtype))

    def shapes(self, classes: int) -> dict[str, Shape]:
        fits = 1 if classes == 2 else classes
        return {"weight": (fits,), "bias": (fits,)}


def _side(z: Tensor) -> Tensor:
    """With two classes the intercept is that of class 1, and for class 0 its negative."""
    if z.shape[1] == 2:
        return torch.tensor([-1.0, 1.0], dtype=z.dtype, device=z.device)
    return torch.ones((), dtype=z.dtype, device=z.device)


def _state(theta: Tensor) -> dict[str, Tensor]:
    return {"weight": theta[:, 0].clone(), "bias": theta[:, 1].clone()}
