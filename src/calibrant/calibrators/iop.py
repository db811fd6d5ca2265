"""Intra-order-preserving calibration: one increasing curve for all logits, of which temperature scaling is the line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.pairs import Array
from calibrant.calibrators.score_map import keep_first
from calibrant.core.calibration import Calibrator, Scope, Shape, State, warn
from calibrant.core.errors import CalibrantError
from calibrant.core.numerics import blocks
from calibrant.core.registry import register
from calibrant.core.temperature import fit_temperature

_LOWEST, _HIGHEST = 1e-2, 1e2  # slopes
_PRIOR = 1.0  # rows that the pull of the slopes towards 1 counts for
_ROUNDS = 100
_SMALL = 1e-12  # twice the loss that a step still gains: Newton's next would gain its square
_SHORTEST = 1e-6  # part of a step


@register("calibrators", "iop", paper="rahimi2020iop")
@dataclass(frozen=True)
class IOP(Calibrator):
    r"""Bends temperature scaling: one increasing function for all log-probabilities, so that every order stays.

    $z'_k = g(\ln p_k)$ with $p = \mathrm{softmax}(z / T)$, T from `temperature`, and g linear between the knots
    $\ln t_j$: the diagonal, order-invariant family of the paper. All slopes 1 is temperature scaling. The log loss is
    convex in the slopes, so that the fit has one answer and no seed; slopes lie in [0.01, 100], and are pulled towards
    1 with the weight of one row, $\frac{1}{2N} \sum_j (w_j - 1)^2$, for the parts of the curve that no row reaches. It
    keeps all ranks, not the first alone, so it repairs no bias for a class. Where no temperature is best, the slopes
    stay 1 and a warning says so. *Deviation:* the paper's g is a monotone network, trained by stochastic gradients
    from a random start; a piecewise linear one is as general with enough knots, and its optimum can be found.
    """

    knots: tuple[float, ...] = (1e-4, 1e-3, 0.01, 0.1, 0.5)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip((0.0, *self.knots), (*self.knots, 1.0), strict=True))
        if not self.knots or not rising or len(self.knots) > 100:
            raise CalibrantError(
                f"knots of iop are at most 100 rising probabilities between 0 and 1, not {self.knots}"
            )

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return True

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        fit = fit_temperature(logits, labels)
        slopes: Array = np.ones(len(self.knots) + 1)
        if fit.bound is not None:
            warn(f"no best curve: {fit.bound}; T = {fit.temperature:g} is used, without a bend")
        else:
            slopes = _best_slopes(_Loss(logits, labels, fit.temperature, self.cuts))
        return {
            "temperature": torch.tensor(fit.temperature, dtype=torch.float64, device=logits.device),
            "slopes": torch.from_numpy(slopes).to(logits.device),
        }

    def apply(self, state: State, logits: Tensor) -> Tensor:
        logs = (logits / state["temperature"].to(logits)).log_softmax(1)
        slopes = state["slopes"].to(logits)
        out = torch.zeros_like(logs)
        for j, part in enumerate(_parts(logs, self.cuts)):
            out = out + slopes[j] * part
        return keep_first(out, logits)

    def shapes(self, classes: int) -> dict[str, Shape]:
        return {"temperature": (), "slopes": (len(self.knots) + 1,)}

    @property
    def cuts(self) -> tuple[float, ...]:
        """The knots as log-probabilities."""
        return tuple(math.log(t) for t in self.knots)


def _parts(logs: Tensor, cuts: tuple[float, ...]) -> Iterator[Tensor]:
    """How far each log-probability reaches below 0 within each piece of the curve; their sum is itself."""
    for low, high in zip((-math.inf, *cuts), (*cuts, 0.0), strict=True):
        yield logs.clamp(min=low, max=high) - high


@dataclass(frozen=True, eq=False)
class _Loss:
    """The mean log loss as a function of the slopes, with its derivatives in float64."""

    logits: Tensor
    labels: Tensor
    temperature: float
    cuts: tuple[float, ...]

    def at(self, slopes: Array) -> tuple[float, Array, Array]:
        """Loss, gradient and Hessian, the pull towards 1 included."""
        n, many = len(self.labels), len(slopes)
        weight = torch.from_numpy(slopes).to(self.logits.device)
        value = torch.zeros((), dtype=torch.float64, device=self.logits.device)
        first, second = weight.new_zeros(many), weight.new_zeros(many, many)
        for rows in blocks(n * many, self.logits.shape[1]):
            rows = slice(rows.start // many, rows.stop // many)
            logs = (self.logits[rows].double() / self.temperature).log_softmax(1)
            masked = logs == -torch.inf
            parts = torch.stack([part.masked_fill(masked, 0) for part in _parts(logs, self.cuts)])
            curve = torch.tensordot(weight, parts, 1).masked_fill(masked, -torch.inf)
            log_p = curve.log_softmax(1)
            true = self.labels[rows, None]
            weighted = parts * log_p.exp()
            mean = weighted.sum(2)
            at_label = parts.gather(2, true.expand(many, -1, 1))[:, :, 0]
            value -= log_p.gather(1, true).sum()
            first += (mean - at_label).sum(1)
            second += weighted.flatten(1) @ parts.flatten(1).T - mean @ mean.T
        pull = _PRIOR / n
        loss = float(value) / n + pull / 2 * float(((slopes - 1) ** 2).sum())
        gradient = first.cpu().numpy() / n + pull * (slopes - 1)
        return loss, gradient, second.cpu().numpy() / n + pull * np.eye(many)


def _best_slopes(loss: _Loss) -> Array:
    """Newton's method within the bounds: each step is the exact minimum of the quadratic model in the box."""
    from scipy.optimize import lsq_linear

    slopes: Array = np.ones(len(loss.cuts) + 1)
    value, gradient, hessian = loss.at(slopes)
    for _ in range(_ROUNDS):
        root = np.linalg.cholesky(hessian)
        target = -np.linalg.solve(root, gradient)
        box = (_LOWEST - slopes - 1e-15, _HIGHEST - slopes + 1e-15)
        step = lsq_linear(root.T, target, box, method="bvls", tol=1e-15).x
        decrease, length = -float(gradient @ step), 1.0
        if decrease < _SMALL:
            slopes = np.clip(slopes + step, _LOWEST, _HIGHEST)
            break
        while True:
            moved = np.clip(slopes + length * step, _LOWEST, _HIGHEST)
            found = loss.at(moved)
            if found[0] <= value - 1e-4 * length * decrease or length < _SHORTEST:
                break
            length /= 2
        slopes, (value, gradient, hessian) = moved, found
    return slopes
