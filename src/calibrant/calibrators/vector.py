"""Vector scaling: a weight and an intercept for each class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.calibrators.affine_start import filled, in_one_order, start_from_temperature
from calibrant.calibrators.softmax_fit import minimise
from calibrant.calibrators.softmax_loss import Penalty
from calibrant.core.calibration import Calibrator, Scope, Shape, State
from calibrant.core.numerics import working_dtype
from calibrant.core.registry import register


@register("calibrators", "vector", paper="guo2017")
@dataclass(frozen=True)
class Vector(Calibrator):
    r"""One weight and one intercept a class: confidence moves for each class in its own way.

    $z'_k = w_k z_k + b_k$ with the smallest log loss, to all digits that it has; $\sum_k b_k = 0$. With all weights
    equal and no intercepts it is `temperature`. The predicted class may change. It has 2 K parameters and no
    regulariser: some tens of rows a class are needed, and what it overfits is about K / N of log loss.
    """

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return False

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits, labels = in_one_order(logits, labels)
        start = start_from_temperature(logits, labels, diagonal=True)
        theta = start.theta
        if not start.right:
            theta = minimise(start.x, labels, start.mask, Penalty(torch.zeros_like(theta), theta), theta)
        bias = theta[:, 1]
        return {"weight": theta[:, 0] / start.unit, "bias": bias - bias.mean()}

    def apply(self, state: State, logits: Tensor) -> Tensor:
        z, seen = filled(logits.to(working_dtype(logits.dtype)))
        return torch.where(seen, z * state["weight"].to(z) + state["bias"].to(z), -torch.inf)

    def shapes(self, classes: int) -> dict[str, Shape]:
        return {"weight": (classes,), "bias": (classes,)}
