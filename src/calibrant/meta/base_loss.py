"""How the rows of a loss that a meta-regulariser has replaced become one number: by the conventions of that loss."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from calibrant.core.objective import Objective, State
from calibrant.core.pointwise import class_weights, is_soft


class Conventions(Protocol):
    """What the losses of single rows have in common, as `torch.nn.functional.cross_entropy` has it."""

    @property
    def weight(self) -> tuple[float, ...] | None: ...

    @property
    def ignore_index(self) -> int: ...


def class_numbers(own: Conventions, logits: Tensor) -> Tensor | None:
    """The loss's class weights beside the logits."""
    return class_weights(own.weight, logits)


def present(own: Conventions, labels: Tensor) -> Tensor:
    """Class indices with class 0 in place of those that are ignored, so that they index without harm."""
    return labels.masked_fill(labels == own.ignore_index, 0)


def mean_of(own: Conventions, rows: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    """The mean of rows that are weighted already: over N for soft labels, else over the weights of the labels."""
    if is_soft(labels):
        return rows.mean()
    ignored = labels == own.ignore_index
    rows = rows.masked_fill(ignored, 0)
    if weight is None:
        return rows.sum() / (~ignored).sum()
    return rows.sum() / weight[present(own, labels)].masked_fill(ignored, 0).sum()


def with_rest(
    factor: float, own: Tensor, rest: Objective | None, state: State | None, logits: Tensor, labels: Tensor
) -> Tensor:
    """The term that was replaced, and all others as they are."""
    value = own if factor == 1 else factor * own
    return value if rest is None else value + rest.loss(state, logits, labels)
