"""Structured matrix scaling: a matrix that is as far from temperature scaling as the rows support."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from calibrant.calibrators.affine import Affine
from calibrant.calibrators.affine_start import in_one_order, parts, start_from_temperature
from calibrant.calibrators.shrinkage import by_cross_validation, check_folds
from calibrant.calibrators.softmax_fit import minimise
from calibrant.calibrators.softmax_loss import Penalty
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register


@register("calibrators", "structured")
@dataclass(frozen=True)
class Structured(Affine):
    r"""Matrix scaling shrunk towards temperature scaling: a matrix where the rows support one, else one number.

    $z' = W z + b$ with the smallest $\mathrm{NLL} + \frac{1}{2 N v} (\sigma^2 \|\mathrm{diag}(T W - I)\|^2 + K \sigma^2
    \|\mathrm{off}(T W)\|^2 + \|b\|^2)$; T is the best temperature and $\sigma^2$ the mean square of logits / T.
    A normal prior, that is: diagonal, rest and intercept may each change a logit by a variance of v.
    With v = 0 it is `temperature`, with v infinite `matrix(strength=0)`. Without a `variance` the path 0, 0.001, ...,
    10 is followed by cross-validation, and a step away from temperature scaling has to gain more than two standard
    errors.
    """

    variance: float | None = None
    folds: int = 3

    def __post_init__(self) -> None:
        check_folds(self.folds)
        if self.variance is not None and not 0 < self.variance < math.inf:
            raise CalibrantError(f"variance must be positive and finite, not {self.variance:g}")

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits, labels = in_one_order(logits, labels)
        start = start_from_temperature(logits, labels, diagonal=False)
        off, bias = parts(start.theta)
        scales = (1 - bias) * start.square + off * (len(off) - 1) * start.square + bias

        def at(variance: float, rows: int) -> Penalty:
            return Penalty(scales / (2 * rows * variance), start.theta)

        theta = start.theta
        if start.right:
            pass
        elif self.variance is None:
            theta = by_cross_validation(start, labels, at, self.folds)
        else:
            theta = minimise(start.x, labels, start.mask, at(self.variance, len(labels)), theta)
        return start.state(theta)
