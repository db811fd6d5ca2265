"""What the pieces of this room have in common: one number for a batch, in full precision, at least 0."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.objective import Criterion
from calibrant.core.pointwise import check_batch, is_soft, widen
from calibrant.core.registry import name_of
from calibrant.core.soft import full_precision


class BatchLoss(Criterion):
    """The interface of a surrogate or penalty. A subclass is final: a frozen dataclass of hyper-parameters.

    Half precision is widened to float32 before anything is computed, under autocast too, and float64 stays; the
    gradient comes back in the dtype of the logits. `vanishes` says whether the value of a calibrated model
    tends to 0 as rows become many, and what smooths narrow.
    """

    vanishes: ClassVar[bool] = True
    targets: ClassVar[str] = "class indices"

    @abstractmethod
    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The scalar of logits [N, K] in float32 or float64 and labels [N]."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The scalar of logits [N, K] and class indices [N]."""
        check_batch(logits, labels)
        if is_soft(labels):
            raise InputError(
                f"{name_of(self)} asks whether a row is right, so it needs class indices, not soft labels"
            )
        with full_precision(logits.device):
            return self.value(widen(logits), labels)


def check_between(name: str, value: float, low: float, high: float) -> None:
    """Refuse a hyper-parameter outside [low, high]."""
    if not low <= value <= high:
        raise CalibrantError(f"{name} must lie between {low:g} and {high:g}, not {value:g}")
