"""Ensemble temperature scaling: temperature scaling, no scaling and no knowledge, mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from calibrant.calibrators.scale_search import best_temperature
from calibrant.core.calibration import Calibrator, Scope, Shape, State, warn
from calibrant.core.numerics import working_dtype
from calibrant.core.registry import register
from calibrant.core.temperature import fit_temperature

_BLOCK = 1 << 19  # elements
_MOST = 0.999  # of the uniform part, so that the class stays
Derivatives = Callable[[Tensor], tuple[float, Tensor, Tensor]]


@register("calibrators", "ets", paper="zhang2020mixnmatch")
@dataclass(frozen=True)
class ETS(Calibrator):
    r"""Mixes the probabilities at the best temperature with the raw ones and with uniform ones.

    $p' = w_1\, \mathrm{softmax}(z / T) + w_2\, \mathrm{softmax}(z) + w_3 / K$ with T as in `temperature` and then the
    weights of the smallest loss, $w \ge 0$, $\sum w = 1$, which is a convex problem. With w = (1, 0, 0) it is
    `temperature`. Ranks and classes stay. The uniform part lifts what is wrong with certainty, as among noisy labels,
    and with many classes it spends much on a few rows. $w_3$ is at most 0.999, so that the class stays. A masked class
    has no part in the uniform probabilities. `loss="mse"` takes the squared error for both steps.
    """

    loss: Literal["ce", "mse"] = "ce"

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return True

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.loss == "ce":
            fit = fit_temperature(logits, labels)
            temperature = fit.temperature
            if fit.bound is not None:
                warn(f"no best temperature: {fit.bound}; T = {temperature:g} is used")
            at_label = torch.cat(
                [p.gather(2, y.expand(3, -1, 1))[:, :, 0] for p, y in _parts(logits, labels, temperature)], 1
            )
            weights = _on_simplex(_log_loss(at_label))
        else:
            temperature, end = best_temperature(_squares, logits, labels)
            if end:
                warn(f"no best temperature for the squared error; T = {temperature:g} is used")
            weights = _on_simplex(_quadratic(logits, labels, temperature))
        if float(weights[2]) > _MOST:
            weights = torch.tensor([1 - _MOST, 0.0, _MOST], dtype=torch.float64)
        kept = torch.tensor(temperature, dtype=torch.float64, device=logits.device)
        return {"temperature": kept, "weights": weights.to(logits.device)}

    def apply(self, state: State, logits: Tensor) -> Tensor:
        z = logits.to(working_dtype(logits.dtype))
        seen = z > -torch.inf
        even = torch.where(seen, -seen.sum(1, keepdim=True).to(z.dtype).log(), -torch.inf)
        scaled = (z / state["temperature"].to(z)).log_softmax(1)
        log_w = state["weights"].to(z).log()
        mixed = torch.stack([scaled + log_w[0], z.log_softmax(1) + log_w[1], even + log_w[2]]).logsumexp(0)
        return torch.where(seen, mixed, -torch.inf)

    def shapes(self, classes: int) -> dict[str, Shape]:
        return {"temperature": (), "weights": (3,)}


def _parts(logits: Tensor, labels: Tensor, temperature: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of the three probabilities [3, n, K] in float64, with labels [n, 1]."""
    step = max(1, _BLOCK // logits.shape[1])
    for start in range(0, len(labels), step):
        z = logits[start : start + step].double()
        seen = (z > -torch.inf).double()
        even = seen / seen.sum(1, keepdim=True)
        yield (
            torch.stack([(z / temperature).softmax(1), z.softmax(1), even]),
            labels[start : start + step, None].long(),
        )


def _log_loss(at_label: Tensor) -> Derivatives:
    def at(w: Tensor) -> tuple[float, Tensor, Tensor]:
        p = (w.to(at_label) @ at_label).clamp_min(1e-300)
        ratio = at_label / p
        n = len(p)
        return float(-p.log().mean()), -ratio.mean(1).cpu(), (ratio @ ratio.t() / n).cpu()

    return at


def _quadratic(logits: Tensor, labels: Tensor, temperature: float) -> Derivatives:
    products, hits = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for p, y in _parts(logits, labels, temperature):
        flat = p.flatten(1)
        products += (flat @ flat.t()).cpu()
        hits += p.gather(2, y.expand(3, -1, 1)).sum((1, 2)).cpu()
    products, hits = products / logits.numel(), hits / logits.numel()

    def at(w: Tensor) -> tuple[float, Tensor, Tensor]:
        return (
            float(w @ products @ w - 2 * (w @ hits)) + 1 / logits.shape[1],
            2 * (products @ w - hits),
            2 * products,
        )

    return at


def _squares(logits: Tensor, labels: Tensor, beta: float) -> tuple[float, float]:
    """The mean square of p - y and its derivative in 1/T."""
    value, slope = 0.0, 0.0
    step = max(1, _BLOCK // logits.shape[1])
    for start in range(0, len(labels), step):
        z = logits[start : start + step].double()
        z = z - z.amax(1, keepdim=True)
        p = (z * beta).softmax(1)
        z = z.where(z > -torch.inf, 0)
        off = p.scatter_add(
            1, labels[start : start + step, None].long(), p.new_full((), -1).expand(len(p), 1)
        )
        value += float(off.square().sum())
        slope += float((2 * off * p * (z - (p * z).sum(1, keepdim=True))).sum())
    return value / logits.numel(), slope / logits.numel()


def _on_simplex(at: Derivatives) -> Tensor:
    """The smallest value of a convex function over w >= 0, sum w = 1: the best of the minima inside each face."""
    best, found = float("inf"), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for size in (1, 2, 3):
        for face in combinations(range(3), size):
            w = _inside(at, face)
            if w is not None and (value := at(w)[0]) < best - 1e-15:
                best, found = value, w
    return found


def _inside(at: Derivatives, face: tuple[int, ...]) -> Tensor | None:
    """The minimum inside one face by Newton's method, or None if it lies on the edge."""
    w = torch.zeros(3, dtype=torch.float64)
    w[list(face)] = 1 / len(face)
    if len(face) == 1:
        return w
    across = torch.zeros(len(face) - 1, 3, dtype=torch.float64)  # directions that keep the sum
    for row, place in enumerate(face[1:]):
        across[row, face[0]], across[row, place] = -1, 1
    for _ in range(200):
        value, gradient, hessian = at(w)
        bend = across @ hessian @ across.t()
        bend.diagonal().add_(1e-14 + 1e-14 * bend.diagonal().max())
        pull = across @ gradient
        step = -(across.t() @ torch.linalg.solve(bend, pull))
        gain = float(-(step @ gradient))
        if gain < 1e-26:
            break
        falling = step < 0
        far = float((w[falling] / -step[falling]).min()) if bool(falling.any()) else 1.0
        size = min(1.0, 0.9 * far)
        while gain > 1e-13 and at(w + size * step)[0] > value - 1e-4 * size * gain and size > 1e-12:
            size /= 2
        w = w + size * step
        if float(w[list(face)].min()) < 1e-10:
            return None
    return w
