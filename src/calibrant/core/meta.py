"""What is learned about a loss while a network trains: the contract of the kind "meta".

    phi = meta.init(features, classes)                                  plain tensors by name
    loss = meta.loss(phi, features, logits, labels, base=base)          a criterion in which phi stands
    phi = meta.project(phi)                                             what phi may be

In the main step phi asks for no gradient, so it is a constant; in the lookahead (`calibrant.meta.hypergradient`) it
does, and the same `loss` is differentiated through. Nothing here keeps a state, and nothing touches a network.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.core.errors import CalibrantError
from calibrant.core.objective import Objective, State, Summand
from calibrant.core.pointwise import widen
from calibrant.core.registry import name_of

Phi = dict[str, Tensor]
"""What is learned, by name: float32 or float64, and the dtype in which it is computed with."""


class Rows(NamedTuple):
    """What the head sees of a batch: the penultimate layer [N, d], and class indices [N] or soft targets [N, K]."""

    features: Tensor
    labels: Tensor

    def detached(self) -> Rows:
        """The same numbers without the network behind them."""
        return Rows(self.features.detach(), self.labels)


class Head(NamedTuple):
    """The last layer, as plain tensors: weight [K, d] and bias [K]."""

    weight: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, layer: nn.Linear) -> Head:
        """The live parameters of a layer."""
        return cls(layer.weight, layer.bias)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The weight, and the bias where there is one."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def leaf(self) -> Head:
        """Copies in full precision that ask for a gradient and lead nowhere else."""
        return Head(*(widen(each.detach()).requires_grad_() for each in self.tensors))

    def alias(self) -> Head:
        """The same tensors once more, so that a gradient for them is not one for what they were made of."""
        return Head(*(each.view_as(each) for each in self.tensors))

    def __call__(self, features: Tensor) -> Tensor:
        """The logits, in the precision of the weights."""
        return F.linear(features.to(self.weight.dtype), self.weight, self.bias)


@dataclass(frozen=True)
class MetaRegularizer(ABC):
    """The interface of a loss with learned parameters, phi. The parameters here say how phi is learned.

    `optimizer`, `lr`, `momentum` (Adam's first beta), Adam's `eps` and `clip` (of the gradient's norm; 0 is none) move
    phi; `anneal` lets `lr` fall with the learning rate of the network. `lookahead` is one of plain SGD ("sgd") or of
    the network's own optimiser, with its momentum and weight decay; it takes `steps` steps of the head.
    """

    optimizer: Literal["adam", "sgd"] = field(default="adam", kw_only=True)
    lr: float = field(default=1e-3, kw_only=True)
    momentum: float = field(default=0.9, kw_only=True)
    eps: float = field(default=1e-8, kw_only=True)
    clip: float = field(default=0.0, kw_only=True)
    anneal: bool = field(default=False, kw_only=True)
    lookahead: Literal["sgd", "optimizer"] = field(default="sgd", kw_only=True)
    steps: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_positive("lr", self.lr)
        check_positive("eps", self.eps)
        check_not_negative("clip", self.clip)
        if not 0 <= self.momentum < 1:
            raise CalibrantError(f"momentum lies in [0, 1), not {self.momentum:g}")
        if self.steps < 1:
            raise CalibrantError(f"steps must be at least 1, not {self.steps}")

    @abstractmethod
    def init(self, features: Tensor, classes: int, *, seed: int = 0) -> Phi:
        """Phi before training, from the features [N, d] of the first batch; on their device, drawn on the CPU."""

    @abstractmethod
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
        """The base objective under phi, a scalar. `state` is that of the base's adaptive terms.

        No gradient flows from phi into the features, whatever else they are part of. What the loss treats as a
        constant is computed by the head `still` where there is one: in later steps of a lookahead, it depends on phi.
        """

    @abstractmethod
    def project(self, phi: Phi) -> Phi:
        """The nearest phi that is allowed."""

    @abstractmethod
    def watched(self, phi: Phi, features: Tensor) -> tuple[str, Tensor]:
        """What a person wants to follow, by name: gamma of each row, the smoothing of each class."""

    def cost(self, phi: Phi, features: Tensor) -> Tensor | None:
        """What is added to the meta-objective for phi itself; nothing by default."""

    def check(self, base: Summand) -> None:
        """Refuse a base objective that this cannot act on."""

    def report(self, phi: Phi, features: Tensor) -> dict[str, float]:
        """Mean, standard deviation and quantiles of what is watched, on a whole set: `gamma_mean`, `gamma_q95`, ..."""
        with torch.no_grad():
            name, values = self.watched(phi, features)
            values = values.flatten().double()
            points = torch.tensor(QUANTILES, dtype=values.dtype, device=values.device)
            ranks = _quantiles(values, points)
            found = torch.cat([values.mean()[None], values.std(correction=0)[None], ranks]).tolist()
        keys = ["mean", "std", *(f"q{round(100 * q):02d}" for q in QUANTILES)]
        return {f"{name}_{key}": value for key, value in zip(keys, found, strict=True)}


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def _quantiles(values: Tensor, points: Tensor) -> Tensor:
    """Linear between the order statistics, as `torch.quantile`, which refuses more than 16 million values."""
    ordered = values.sort().values
    place = points * (len(ordered) - 1)
    below = place.floor().long()
    return torch.lerp(ordered[below], ordered[(below + 1).clamp_max(len(ordered) - 1)], place - below)


def as_objective(base: Summand) -> Objective:
    """An objective, from one or from a single piece such as `CE()`."""
    return base if isinstance(base, Objective) else 1 * base


def term_of(base: Summand, name: str, why: str) -> tuple[float, Summand, Objective | None]:
    """The one term of an objective with a name: its factor, the piece, and the other terms. `why` ends the refusal."""
    whole = as_objective(base)
    own = [place for place, (_, piece) in enumerate(whole.terms) if _named(piece) == name]
    if len(own) != 1:
        count = "no" if not own else "more than one"
        raise CalibrantError(f"{whole} has {count} term {name!r}, {why}")
    factor, piece = whole.terms[own[0]]
    rest = tuple(term for place, term in enumerate(whole.terms) if place != own[0])
    assert isinstance(piece, Summand)
    return factor, piece, Objective(rest) if rest else None


def _named(piece: object) -> str | None:
    """The registered name of a piece; a person's own piece may have none."""
    try:
        return name_of(piece)
    except KeyError:
        return None


def check_positive(name: str, value: float) -> None:
    """Refuse what is not a positive number."""
    if not 0 < value < math.inf:
        raise CalibrantError(f"{name} must be finite and above 0, not {value:g}")


def check_not_negative(name: str, value: float) -> None:
    """Refuse what is not a number of at least 0."""
    if not 0 <= value < math.inf:
        raise CalibrantError(f"{name} must be finite and at least 0, not {value:g}")
