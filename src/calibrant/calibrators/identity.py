"""The calibrator that changes nothing: what every other one has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calibrant.core.calibration import Calibrator, Scope, Shape, State
from calibrant.core.registry import register


@register("calibrators", "identity")
@dataclass(frozen=True)
class Identity(Calibrator):
    r"""No calibration: logits leave as they came.

    $z' = z$. It is the baseline of every comparison, what `auto` falls back to, and `temperature` at T = 1. It learns
    nothing, so nothing can be overfitted and nothing is repaired.
    """

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return True

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {}

    def apply(self, state: State, logits: Tensor) -> Tensor:
        return logits.clone()

    def shapes(self, classes: int) -> dict[str, Shape]:
        return {}
