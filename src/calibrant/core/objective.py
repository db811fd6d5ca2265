"""What is minimised in training: a weighted sum of losses, penalties and surrogates, written as one spec.

`objective("ce + 0.01*lp_norm(p=1)")` is a criterion for anyone's loop. Pieces of Calibrant can also be added in Python:
`CE() + 0.01 * LpNorm(p=1)` is the same object. Negative coefficients are allowed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from calibrant.core.contracts import Loss
from calibrant.core.errors import CalibrantError, SpecError, nearest
from calibrant.core.registry import names
from calibrant.core.spec import canonical, join_terms, make, parse

KINDS = ("losses", "penalties", "surrogates")
"""Where a name in an objective is looked up, in this order; `label_smoothing` as a meta-regulariser is another kind."""

State = tuple[Tensor, ...]


@runtime_checkable
class PerSample(Protocol):
    """A loss that is a mean over rows: `per_sample(logits, labels) -> [N]` gives the rows."""

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor: ...


@runtime_checkable
class Adaptive(Protocol):
    """A loss that learns from validation predictions once an epoch; what it learned is a tensor handed in and out.

    Called without a state, it is the loss that it is before the first update.
    """

    def init(self) -> Tensor: ...

    def loss(self, state: Tensor, logits: Tensor, labels: Tensor) -> Tensor: ...

    def update(self, state: Tensor, logits: Tensor, labels: Tensor) -> Tensor: ...


class Summand:
    """Lets pieces and objectives be added up in Python."""

    def __add__(self, other: Any) -> Objective:
        return Objective(_terms(self) + _terms(other)) if _is_term(other) else NotImplemented

    def __sub__(self, other: Any) -> Objective:
        return self + -1 * other if isinstance(other, Summand) else NotImplemented

    def __mul__(self, factor: Any) -> Objective:
        if not isinstance(factor, int | float) or isinstance(factor, bool):
            return NotImplemented
        return Objective(tuple((factor * own, piece) for own, piece in _terms(self)))

    __rmul__ = __mul__

    def __neg__(self) -> Objective:
        return -1 * self


class Criterion(Summand, ABC):
    """The interface of a piece that an objective is made of: the mean over the batch, from logits [N, K] and labels."""

    @abstractmethod
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...

    def __str__(self) -> str:
        return canonical(self)


@dataclass(frozen=True)
class Objective(Summand):
    """A weighted sum of losses, penalties and surrogates, equal to another with the same terms in the same order."""

    terms: tuple[tuple[float, Loss], ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise CalibrantError("an objective needs at least one term, such as 'ce'")
        if not all(math.isfinite(factor) for factor, _ in self.terms):
            raise CalibrantError(f"the factors of {self} must be finite")
        object.__setattr__(self, "terms", tuple((float(factor), piece) for factor, piece in self.terms))

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.loss(None, logits, labels)

    def __str__(self) -> str:
        return join_terms((factor, canonical(piece)) for factor, piece in self.terms)

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The rows [N] of an objective all of whose terms are means over rows."""
        parts = []
        for factor, piece in self.terms:
            if not isinstance(piece, PerSample):
                raise CalibrantError(
                    f"{canonical(piece)} is one number for a batch; leave it out to get rows"
                )
            parts.append((factor, piece.per_sample(logits, labels)))
        return _sum(parts)

    @property
    def adaptive(self) -> bool:
        """Whether a term learns from validation predictions, so that `init`, `loss` and `update` are needed."""
        return any(isinstance(piece, Adaptive) for _, piece in self.terms)

    def init(self) -> State:
        """The state before training: one tensor for each adaptive term."""
        return tuple(piece.init() for _, piece in self.terms if isinstance(piece, Adaptive))

    def loss(self, state: State | None, logits: Tensor, labels: Tensor) -> Tensor:
        """The objective under a state; without one, adaptive terms are what they are before the first update."""
        states = iter(state) if state is not None else None
        parts = []
        for factor, piece in self.terms:
            if states is not None and isinstance(piece, Adaptive):
                parts.append((factor, piece.loss(next(states), logits, labels)))
            elif factor or len(self.terms) == 1:
                parts.append((factor, piece(logits, labels)))
        return _sum(parts) if parts else 0 * self.terms[0][1](logits, labels)

    def update(self, state: State, logits: Tensor, labels: Tensor) -> State:
        """The state after an epoch, from validation predictions."""
        pieces = [piece for _, piece in self.terms if isinstance(piece, Adaptive)]
        return tuple(piece.update(own, logits, labels) for piece, own in zip(pieces, state, strict=True))


def objective(text: str) -> Objective:
    """An objective from a spec such as `ce`, `focal(gamma=3) + 1*mdca` or `ce - 0.1*entropy`."""
    known = {kind: set(names(kind)) for kind in KINDS}
    terms = []
    for term in parse(text).terms:
        kind = next((kind for kind in KINDS if term.call.name in known[kind]), None)
        if kind is None:
            offer = nearest(term.call.name, set().union(*known.values()))
            raise SpecError(f"no loss, penalty or surrogate {term.call.name!r}{offer}")
        terms.append((term.factor, make(term.call, kind)))
    return Objective(tuple(terms))


loss = objective
"""`calibrant.loss("focal(gamma=3)")`: the name that users type."""


def _is_term(value: object) -> bool:
    return isinstance(value, Summand)


def _terms(value: Any) -> tuple[tuple[float, Loss], ...]:
    return value.terms if isinstance(value, Objective) else ((1.0, value),)


def _sum(parts: list[tuple[float, Tensor]]) -> Tensor:
    factor, total = parts[0]
    total = total if factor == 1 else factor * total
    for factor, value in parts[1:]:
        total = total + value if factor == 1 else total.add(value, alpha=factor)
    return total
