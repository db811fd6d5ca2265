r"""What linear maps of logits have in common.

Every fit starts from temperature scaling, so that it is no worse on its rows. A masked class stays masked, and where
others look at it, it stands for the mean of those that are not. The row of a class that has no label is not learned:
it stays that of temperature scaling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.calibrators.affine_start import Start, filled, in_one_order, parts, start_from_temperature
from calibrant.calibrators.shrinkage import by_cross_validation, check_folds
from calibrant.calibrators.softmax_fit import minimise
from calibrant.calibrators.softmax_loss import Penalty
from calibrant.core.calibration import Calibrator, Scope, Shape, State
from calibrant.core.errors import CalibrantError
from calibrant.core.numerics import working_dtype


@dataclass(frozen=True)
class Affine(Calibrator):
    """What the maps with a whole matrix share."""

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return False

    def features(self, logits: Tensor) -> Tensor:
        """What the matrix is applied to."""
        return logits

    def apply(self, state: State, logits: Tensor) -> Tensor:
        z, seen = filled(self.features(logits.to(working_dtype(logits.dtype))))
        return torch.where(seen, z @ state["weight"].to(z).t() + state["bias"].to(z), -torch.inf)

    def shapes(self, classes: int) -> dict[str, Shape]:
        return {"weight": (classes, classes), "bias": (classes,)}


@dataclass(frozen=True)
class OffDiagonal(Affine):
    """A matrix whose off-diagonal entries and intercepts are pulled to 0, and the choice of how strongly."""

    strength: float | None = None
    intercept: float | None = None
    folds: int = 3

    def __post_init__(self) -> None:
        check_folds(self.folds)
        check_weight("strength", self.strength)
        check_weight("intercept", self.intercept)
        if self.strength is None and self.intercept is not None:
            raise CalibrantError(
                "intercept needs a strength: leave both out to choose them by cross-validation"
            )

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits, labels = in_one_order(logits, labels)
        start = start_from_temperature(
            self.features(logits.to(working_dtype(logits.dtype))), labels, diagonal=False
        )
        k = logits.shape[1]
        off, bias = parts(start.theta)
        theta = start.theta
        if start.right:
            pass
        elif self.strength is None:

            def at(variance: float, rows: int) -> Penalty:
                weight = (off * k * start.square + bias) / (2 * rows * variance)
                return Penalty(weight, torch.zeros_like(weight))

            theta = by_cross_validation(start, labels, at, self.folds)
        else:
            theta = minimise(start.x, labels, start.mask, self.fixed(start), theta)
        return start.state(theta)

    def fixed(self, start: Start) -> Penalty:
        """The penalty with given weights, in the units of the fit."""
        off, bias = parts(start.theta)
        k = len(off)
        strength = self.strength or 0.0
        intercept = strength if self.intercept is None else self.intercept
        weight = off * (strength / (k * (k - 1)) / start.unit**2) + bias * (intercept / k)
        return Penalty(weight, torch.zeros_like(weight))


def check_weight(name: str, weight: float | None) -> None:
    """Refuse a weight of a penalty that is none."""
    if weight is not None and not 0 <= weight < math.inf:
        raise CalibrantError(f"{name} must be finite and at least 0, not {weight:g}")
