"""The contract of losses that compare predictions with targets: indices or distributions, weights, ignored rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.objective import Criterion
from calibrant.core.pointwise import check_batch, class_weights, is_soft, widen
from calibrant.core.registry import CONVENTION


@dataclass(frozen=True)
class TargetLoss(Criterion):
    """A mean over rows with the conventions of `torch.nn.functional.cross_entropy`.

    Labels are class indices [N], or floating-point distributions [N, K]. With `weight` (one number a class) a row
    counts w_y, and the mean divides by the sum of the w_y; rows labelled `ignore_index` count nothing (without any
    other row the mean is NaN, as in torch). Soft targets weigh each class, divide by N, and cannot ignore a row.
    `per_sample` is what `reduction="none"` would be: weighted, and 0 in ignored rows.
    """

    weight: tuple[float, ...] | None = field(default=None, kw_only=True, metadata=CONVENTION)
    ignore_index: int = field(default=-100, kw_only=True, metadata=CONVENTION)
    targets: ClassVar[str] = "class indices, or soft targets [N, K]"

    def __post_init__(self) -> None:
        if self.weight is not None:
            if not all(0 <= w < math.inf for w in self.weight) or not any(self.weight):
                raise CalibrantError("weight must be finite numbers of at least 0, and not all 0")
            object.__setattr__(self, "weight", tuple(float(w) for w in self.weight))

    @abstractmethod
    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row [N] for class indices, 0 in ignored rows; widened logits, no class weights."""

    @abstractmethod
    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        """The loss of each row [N] for distributions, classes weighted."""

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row [N]."""
        check_batch(logits, labels)
        z = widen(logits)
        weight = class_weights(self.weight, z)
        if is_soft(labels):
            if self.ignore_index >= 0:
                raise CalibrantError(
                    f"soft labels have no class {self.ignore_index} to ignore; leave out ignore_index"
                )
            return self.soft(z, labels.to(z.dtype), weight)
        rows = self.hard(z, labels)
        return rows if weight is None else rows * weight[self.present(labels)]

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        rows = self.per_sample(logits, labels)
        if is_soft(labels):
            return rows.mean()
        if self.weight is None:
            return rows.sum() / (labels != self.ignore_index).sum()
        weight = class_weights(self.weight, rows[:, None].expand(-1, len(self.weight)))
        assert weight is not None
        return rows.sum() / self.kept(weight[self.present(labels)], labels).sum()

    def present(self, labels: Tensor) -> Tensor:
        """The labels, with class 0 in place of `ignore_index`, so that they index without harm."""
        return labels.masked_fill(labels == self.ignore_index, 0)

    def kept(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Rows with 0 in place of those that are ignored, whatever stood there."""
        return rows.masked_fill(labels == self.ignore_index, 0)


def weighted(targets: Tensor, weight: Tensor | None) -> Tensor:
    """Targets times class weights."""
    return targets if weight is None else targets * weight
