"""Learned weight decay of the head, which is what meta-calibration learned first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.meta import Head, MetaRegularizer, Phi, as_objective
from calibrant.core.objective import State, Summand
from calibrant.core.pointwise import widen
from calibrant.core.registry import register


@register("meta", "weight_decay", paper="bohdal2021")
@dataclass(frozen=True)
class LearnedWeightDecay(MetaRegularizer):
    r"""L2 on the head with learned coefficients: large weights of the last layer, and with them confidence, are taxed.

    The base objective plus $\sum_j \omega_j \theta_j^2$ over weight and bias of the head, one $\omega$ for each
    element, for each unit (a class's weights and bias) or for the layer; with all 0 it is the base alone. It comes on
    top of the optimiser's own weight decay, and has to be told the head. As in the released code a coefficient may
    become negative, which feeds a weight in place of taxing it and can run away; `negative=False` keeps them at 0.
    *Deviation:* the base is a mean, where the reference adds the same sum to a summed loss: $\omega$ here is theirs
    over the rows of a batch. Document 000 calls it unit-wise; the released code, and the default here, is by element.
    """

    granularity: Literal["element", "unit", "layer"] = "element"
    start: float = 0.0
    negative: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.start) or (self.start < 0 and not self.negative):
            raise CalibrantError(
                f"start must be finite, and at least 0 unless negative=True, not {self.start:g}"
            )

    def init(self, features: Tensor, classes: int, *, seed: int = 0) -> Phi:
        """All coefficients at the start."""
        like, width = widen(features), features.shape[1]
        if self.granularity == "element":
            return {
                "weight": like.new_full((classes, width), self.start),
                "bias": like.new_full((classes,), self.start),
            }
        size = (classes,) if self.granularity == "unit" else ()
        return {"coefficient": like.new_full(size, self.start)}

    def loss(
        self,
        phi: Phi,
        features: Tensor,
        logits: Tensor,
        labels: Tensor,
        *,
        base: Summand,
        head: Head | None = None,
        state: State | None = None,
        still: Head | None = None,
    ) -> Tensor:
        if head is None:
            raise CalibrantError(
                "the meta-regulariser weight_decay acts on the head; pass head=Head.of(layer)"
            )
        value = as_objective(base).loss(state, logits, labels)
        weight = widen(head.weight).square()
        bias = None if head.bias is None else widen(head.bias).square()
        if self.granularity == "element":
            tax = (phi["weight"] * weight).sum()
            return value + (tax if bias is None else tax + (phi["bias"] * bias).sum())
        size = weight.sum(1) if bias is None else weight.sum(1) + bias
        return value + (phi["coefficient"] * size).sum()

    def project(self, phi: Phi) -> Phi:
        """Free, or not below 0."""
        return {name: value if self.negative else value.clamp_min(0) for name, value in phi.items()}

    def watched(self, phi: Phi, features: Tensor) -> tuple[str, Tensor]:
        return "weight_decay", phi["weight" if self.granularity == "element" else "coefficient"]
