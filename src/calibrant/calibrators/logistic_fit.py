r"""Logistic regressions of a few features, one for each class at once: Newton's method with bounds.

Each class minimises $\frac1N \sum_i \mathrm{softplus}(\eta_i) - t_i \eta_i$, $\eta = \sum_j \theta_j f_j$, which is
convex; some of $\theta$ may be bounded by 0 from below. Steps of all classes are taken together, each class halving
its own until it helps. A question that all rows answer alike teaches nothing and keeps theta at identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 1 << 18  # elements
_ROUNDS = 200
_ENOUGH = 1e-22  # the last step gives twice the digits of the one before
_ROUNDING = 1e-13  # of a loss: below, values do not tell a better step from a worse one


@dataclass(frozen=True)
class Questions:
    """Yes-or-no questions [K] about rows: features [N, K] each, the answers, and which rows are asked at all."""

    features: Sequence[Tensor]
    hits: Tensor
    asked: Tensor
    smooth: Tensor
    """The questions whose targets are Platt's (n1 + 1) / (n1 + 2) and 1 / (n0 + 2) in place of 1 and 0."""

    def sums(self, theta: Tensor, bent: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Losses [K], gradients [K, p] and Hessians [K, p, p], as means over the rows that are asked."""
        k, width = theta.shape
        count = self.asked.sum(0).double().clamp_min(1)
        yes = (self.hits & self.asked).sum(0).double()
        high = torch.where(self.smooth, (yes + 1) / (yes + 2), 1.0)
        low = torch.where(self.smooth, 1 / (count - yes + 2), 0.0)
        loss, gradient = theta.new_zeros(k), theta.new_zeros(k, width)
        hessian = theta.new_zeros(k, width, width)
        step = max(1, _BLOCK // k)
        for start in range(0, len(self.hits), step):
            rows = slice(start, start + step)
            f = [*(each[rows].double() for each in self.features), self.asked[rows].double()]
            eta = torch.stack([each * theta[:, j] for j, each in enumerate(f)]).sum(0)
            target = torch.where(self.hits[rows], high, low)
            loss += ((torch.nn.functional.softplus(eta) - target * eta) * f[-1]).sum(0)
            p = eta.sigmoid()
            off = (p - target) * f[-1]
            for j, each in enumerate(f):
                gradient[:, j] += (off * each).sum(0)
            if not bent:
                continue
            p = p * (1 - p)
            for j, each in enumerate(f):
                pf = p * each
                for i in range(j + 1):
                    hessian[:, i, j] += (pf * f[i]).sum(0)
        hessian = hessian + hessian.triu(1).transpose(1, 2)
        return loss / count, gradient / count[:, None], hessian / count[:, None, None]


def ask(
    features: Sequence[Tensor], hits: Tensor, asked: Tensor, smooth: bool, falling: bool = True
) -> Questions:
    """Questions with Platt's targets where wanted, and where the first feature parts yes from no without them.

    There the loss has no smallest value; `falling` says whether a map that falls with the feature is possible.
    """
    score, wide = features[0], torch.inf
    yes, no = hits & asked, ~hits & asked
    apart = torch.where(yes, score, wide).amin(0) >= torch.where(no, score, -wide).amax(0)
    if falling:
        apart |= torch.where(yes, score, -wide).amax(0) <= torch.where(no, score, wide).amin(0)
    return Questions(features, hits, asked, apart | smooth)


def fit_logistic(questions: Questions, identity: Tensor, bounded: int = 0) -> Tensor:
    """Theta [K, p], the intercept last; the first `bounded` of each are at least 0."""
    k = questions.hits.shape[1]
    bound = torch.arange(len(identity), device=identity.device) < bounded
    teaches = (questions.hits & questions.asked).any(0) & (~questions.hits & questions.asked).any(0)
    theta = identity.expand(k, -1).clone()
    moving = teaches
    loss, gradient, hessian = questions.sums(theta)
    for _ in range(_ROUNDS):
        held = bound & (theta <= 0) & (gradient >= 0)
        step = _step(gradient, hessian, held)
        gain = (step * gradient).sum(1)
        moving = moving & (gain > _ENOUGH)
        if not bool(moving.any()):
            break
        size = moving.double()
        before = loss
        for _ in range(40):
            trial = theta - size[:, None] * step
            trial = torch.where(bound, trial.clamp_min(0), trial)
            loss, gradient, hessian = questions.sums(trial)
            worse = moving & (
                loss > before - 1e-4 * ((theta - trial) * _slope(step, gain)).sum(1) + _ROUNDING
            )
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2, size)
        moving = moving & ((trial - theta).abs().amax(1) > 1e-14 * theta.abs().amax(1))
        theta = trial
    return theta


def _slope(step: Tensor, gain: Tensor) -> Tensor:
    """A direction whose product with `step` is the gain: what a full step promises, share by share."""
    return step * (gain / step.square().sum(1).clamp_min(1e-300))[:, None]


def _step(gradient: Tensor, hessian: Tensor, held: Tensor) -> Tensor:
    """The step of Newton over what is not held at its bound."""
    diagonal = hessian.diagonal(dim1=1, dim2=2)
    scale = diagonal.clamp_min(1e-30).rsqrt()
    scaled = hessian * scale[:, :, None] * scale[:, None, :]
    free = ~held
    scaled = scaled * free[:, :, None] * free[:, None, :]
    scaled.diagonal(dim1=1, dim2=2).add_(held.double() + 1e-12)
    solved: Tensor = torch.linalg.solve(scaled, gradient * scale * free)
    return solved.mul(scale).mul(free)
