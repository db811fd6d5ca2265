"""Beta calibration: a sigmoid of ln p and ln(1 - p) with weights of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.calibrators.logistic_fit import ask, fit_logistic
from calibrant.calibrators.odds import log_odds, log_sigmoid, no_worse, top_log_odds
from calibrant.core.calibration import Calibrator, Scope, Shape, State, Top
from calibrant.core.numerics import working_dtype
from calibrant.core.registry import register


@register("calibrators", "beta", paper="kull2017beta")
@dataclass(frozen=True)
class Beta(Calibrator):
    r"""Beta calibration: like `platt`, but confidence near 0 and near 1 is bent by weights of their own.

    $q = \sigma(a \ln s - b \ln(1 - s) + c)$ with $a, b \ge 0$, so that it never falls; s is the probability of a class,
    each fitted against the rest and renormalised (two classes: one fit), or with `target="top"` the confidence, whose
    correctness is then fitted and the class stays. With a = b it is Platt scaling of log-odds, with 1, 1, 0
    `identity`. If s has a Beta distribution in either group it is the true posterior. What parts a class from the rest
    without error gets Platt's targets; a class without a label keeps its probability; classes that are worse
    together than before go back half of the way, as in `platt`. Three numbers a class want some tens of its rows.
    """

    target: Literal["classwise", "top"] = "classwise"

    @property
    def scope(self) -> Scope:
        return "top" if self.target == "top" else "full"

    @property
    def keeps_argmax(self) -> bool:
        return self.target == "top"

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        z = logits.double()
        identity = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, device=z.device)
        if self.target == "top":
            predicted, log_p, rest = top_log_odds(z)
            hits = (predicted == labels)[:, None]
            rows = ask([log_p[:, None], -rest[:, None]], hits, torch.ones_like(hits), False, falling=False)
            return _state(fit_logistic(rows, identity, bounded=2))
        log_p, rest, seen = log_odds(z)
        first = 1 if z.shape[1] == 2 else 0
        hits = labels[:, None] == torch.arange(first, z.shape[1], device=labels.device)
        asked = (seen.all(1, keepdim=True) if first else seen).expand_as(hits)
        rows = ask([log_p[:, first:], -rest[:, first:]], hits, asked, False, falling=False)
        theta = fit_logistic(rows, identity, bounded=2)
        return _state(no_worse(theta, identity, lambda t: self._vector(_state(t), logits), logits, labels))

    def apply(self, state: State, logits: Tensor) -> Tensor | Top:
        if self.target == "classwise":
            return self._vector(state, logits)
        z, dtype = logits.double(), working_dtype(logits.dtype)
        predicted, log_p, rest = top_log_odds(z)
        a, b, c = (state[name].to(z) for name in ("a", "b", "c"))
        return Top(
            predicted, (a * log_p - b * rest + c).sigmoid().clamp_min(torch.finfo(dtype).tiny).to(dtype)
        )

    def shapes(self, classes: int) -> dict[str, Shape]:
        fits = 1 if classes == 2 or self.target == "top" else classes
        return {"a": (fits,), "b": (fits,), "c": (fits,)}

    def _vector(self, state: State, logits: Tensor) -> Tensor:
        z = logits.double()  # a weight may be 50, and what is rounded before it is rounded 50 times as much
        log_p, rest, seen = log_odds(z)
        a, b, c = (state[name].to(z) for name in ("a", "b", "c"))
        if z.shape[1] == 2:  # the fit is of class 1, and class 0 is what remains
            eta = (a * log_p - b * rest + c)[:, 1:]
            eta = torch.cat([-eta, eta], 1)
        else:
            eta = a * log_p - b * rest + c
        return torch.where(seen, log_sigmoid(eta), -torch.inf).to(working_dtype(logits.dtype))


def _state(theta: Tensor) -> dict[str, Tensor]:
    return {name: theta[:, j].clone() for j, name in enumerate(("a", "b", "c"))}
