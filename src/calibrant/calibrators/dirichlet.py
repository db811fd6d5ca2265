"""Dirichlet calibration: a matrix on log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calibrant.calibrators.affine import OffDiagonal
from calibrant.core.registry import register


@register("calibrators", "dirichlet", paper="kull2019dirichlet")
@dataclass(frozen=True)
class Dirichlet(OffDiagonal):
    r"""Dirichlet calibration: the matrix is applied to log-probabilities, which forget what is common to all logits.

    $z' = W \ln p + b$ with off-diagonal and intercept regularisation (ODIR): the smallest $\mathrm{NLL} +
    \frac{\lambda}{K (K - 1)} \sum_{i \ne j} W_{ij}^2 + \frac{\mu}{K} \sum_k b_k^2$; $\lambda$ is `strength`, $\mu$
    `intercept` (as `strength` unless given). If the probabilities of each class were Dirichlet distributed, this would
    be the true posterior. With W = I / T it is `temperature`. Without a strength both are chosen by
    cross-validation, and temperature scaling is kept unless the gain exceeds two standard errors: with many classes a
    weak penalty memorises the rows. *Deviation:* the paper chooses both numbers from a grid, by folds too.
    """

    def features(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(1)
