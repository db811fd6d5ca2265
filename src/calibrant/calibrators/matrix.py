"""Matrix scaling: a weight for each pair of classes, and how it is kept from memorising."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from calibrant.calibrators.affine import OffDiagonal
from calibrant.calibrators.affine_start import Start, parts
from calibrant.calibrators.softmax_loss import Penalty
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register


@register("calibrators", "matrix", paper="guo2017")
@dataclass(frozen=True)
class Matrix(OffDiagonal):
    r"""A whole matrix and an intercept a class: also moves probability between classes that are confused.

    $z' = W z + b$ with the smallest $\mathrm{NLL} + \frac{\lambda}{K (K - 1)} \sum_{i \ne j} W_{ij}^2 +
    \frac{\mu}{K} \sum_k b_k^2$: $\lambda$ is `strength`, $\mu$ `intercept` (as `strength` unless given). Without a
    strength both are chosen by cross-validation, and temperature scaling is kept unless the gain on held-out rows
    exceeds two standard errors. `strength=0` is the matrix of Guo et al.: with 100 classes and 5,000 rows it memorises
    them, and is far worse than no calibration. `penalty="zero"` or `"identity"` weighs all entries instead, by
    $\lambda \|W - W_0\|^2 + \mu \|b\|^2$.
    """

    penalty: Literal["off_diagonal", "zero", "identity"] = "off_diagonal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty != "off_diagonal" and self.strength is None:
            raise CalibrantError(
                f'penalty="{self.penalty}" needs a strength; cross-validation has its own penalty'
            )

    def fixed(self, start: Start) -> Penalty:
        if self.penalty == "off_diagonal":
            return super().fixed(start)
        strength = self.strength or 0.0
        intercept = strength if self.intercept is None else self.intercept
        off, bias = parts(start.theta)
        center = torch.zeros_like(off)
        if self.penalty == "identity":
            center.fill_diagonal_(start.unit)
        return Penalty((1 - bias) * (strength / start.unit**2) + bias * intercept, center)
