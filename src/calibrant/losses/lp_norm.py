"""The length of the logits as a penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.objective import Criterion
from calibrant.core.pointwise import check_batch, row_norm, widen
from calibrant.core.registry import register


@register("penalties", "lp_norm", paper="joo2020")
@dataclass(frozen=True)
class LpNorm(Criterion):
    r"""The p-norm of the logits: shorter logits are less confident, whatever the label.

    $\lVert z \rVert_p$, the mean over rows; use it as `ce + 0.01*lp_norm(p=1)`. Scaling logits up raises the top
    probability (document 001, theorem 1), so a bound on the scale bounds confidence. At p = 1 it grows with K:
    a coefficient for 10 classes is ten times too strong for 100. A negative coefficient (document 002) leaves the
    objective without a lower bound and diverges unless it is tiny. It is the norm, neither its p-th power nor a mean
    over classes. Labels are not read: every row counts, and -inf logits make it infinite. A constant added to all
    logits changes it.
    """

    p: float = 1.0
    targets: ClassVar[str] = "not read"
    drawn: ClassVar[tuple[str, ...]] = ("lp_norm(p=1)", "lp_norm(p=2)")

    def __post_init__(self) -> None:
        if not 1 <= self.p < math.inf:
            raise CalibrantError(f"p must be at least 1 and finite, not {self.p:g}")

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The norm of each row [N]."""
        check_batch(logits, labels)
        z = widen(logits)
        if self.p in (1, 2):
            return row_norm(z, self.p)[:, 0]
        top = (
            z.detach().abs().amax(1, keepdim=True)
        )  # homogeneous: no power overflows after division by a constant
        top = torch.where(top == 0, 1, top)
        return (row_norm(z / top, self.p) * top)[:, 0]

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.per_sample(logits, labels).mean()
