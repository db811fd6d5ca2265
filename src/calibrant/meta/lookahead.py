"""How the head moves in a lookahead: a step of an optimiser as a differentiable function, nothing changed in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.errors import CalibrantError
from calibrant.core.meta import Head, MetaRegularizer
from calibrant.core.soft import root

Tensors = tuple[Tensor, ...]


class Descent(ABC):
    """A rule that moves a head: `memory` begins as the optimiser's own, and is handed from step to step."""

    @abstractmethod
    def begin(self, head: Head) -> tuple[Tensors, ...]:
        """The memory before the first step, a tensor for each of the head's in each group; it is only read."""

    @abstractmethod
    def move(
        self, head: Head, gradient: Tensors, memory: tuple[Tensors, ...]
    ) -> tuple[Head, tuple[Tensors, ...]]:
        """The head after a step, and the memory."""


@dataclass(frozen=True, eq=False)
class SGD(Descent):
    """torch's SGD; without momentum and weight decay it is the lookahead of document 000 and the default.

    `rate` may be a tensor, so that a captured step reads the rate of the moment; `velocity` are momentum buffers.
    """

    rate: Tensor | float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    velocity: Tensors | None = None

    def begin(self, head: Head) -> tuple[Tensors, ...]:
        if not self.momentum:
            return ()
        return (self.velocity or tuple(torch.zeros_like(each) for each in head.tensors),)

    def move(
        self, head: Head, gradient: Tensors, memory: tuple[Tensors, ...]
    ) -> tuple[Head, tuple[Tensors, ...]]:
        if self.weight_decay:
            gradient = tuple(
                g + self.weight_decay * own for g, own in zip(gradient, head.tensors, strict=True)
            )
        if self.momentum:
            velocity = tuple(self.momentum * v + g for v, g in zip(memory[0], gradient, strict=True))
            memory = (velocity,)
            gradient = (
                tuple(g + self.momentum * v for g, v in zip(gradient, velocity, strict=True))
                if self.nesterov
                else velocity
            )
        return Head(*(own - self.rate * g for own, g in zip(head.tensors, gradient, strict=True))), memory


@dataclass(frozen=True, eq=False)
class AdamW(Descent):
    """torch's AdamW, from its moments and the number of steps that it has taken."""

    rate: Tensor | float
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    first: Tensors | None = None
    second: Tensors | None = None
    taken: Tensor | None = None

    def begin(self, head: Head) -> tuple[Tensors, ...]:
        fresh = tuple(torch.zeros_like(each) for each in head.tensors)
        taken = self.taken if self.taken is not None else fresh[0].new_zeros(())
        return self.first or fresh, self.second or fresh, (taken.to(head.weight),)

    def move(
        self, head: Head, gradient: Tensors, memory: tuple[Tensors, ...]
    ) -> tuple[Head, tuple[Tensors, ...]]:
        (one, two), (taken,) = self.betas, memory[2]
        taken = taken + 1
        first = tuple(one * m + (1 - one) * g for m, g in zip(memory[0], gradient, strict=True))
        second = tuple(two * v + (1 - two) * g * g for v, g in zip(memory[1], gradient, strict=True))
        moved = []
        for own, m, v in zip(head.tensors, first, second, strict=True):
            step = m / (1 - one**taken) / (root(v / (1 - two**taken)) + self.eps)
            moved.append(own * (1 - self.rate * self.weight_decay) - self.rate * step)
        return Head(*moved), (first, second, (taken,))


def descent(meta: MetaRegularizer, optimizer: torch.optim.Optimizer, layer: nn.Linear) -> Descent:
    """The lookahead that a meta-regulariser asks for, at the rate that the optimiser has for the head right now.

    "optimizer" follows torch's SGD and AdamW with what they remember, which is read and not changed.
    """
    parameters = list(Head.of(layer).tensors)
    groups = [g for g in optimizer.param_groups if all(any(p is q for q in g["params"]) for p in parameters)]
    if not groups:
        raise CalibrantError(
            "the optimiser has no group with both weight and bias of the head; put them into one group"
        )
    group = groups[0]
    if meta.lookahead == "sgd":
        return SGD(group["lr"])
    states: list[dict[str, Any]] = [optimizer.state.get(p, {}) for p in parameters]
    unusual = [name for name in ("dampening", "maximize", "amsgrad") if group.get(name)]
    if type(optimizer) not in (torch.optim.SGD, torch.optim.AdamW) or unusual:
        shown = f"{type(optimizer).__name__}({', '.join(f'{n}={group[n]}' for n in unusual)})"
        raise CalibrantError(f'lookahead="optimizer" follows SGD and AdamW, not {shown}; use lookahead="sgd"')
    if isinstance(optimizer, torch.optim.SGD):
        return SGD(
            group["lr"],
            group["momentum"],
            group["nesterov"],
            group["weight_decay"],
            _remembered(states, "momentum_buffer"),
        )
    return AdamW(
        group["lr"],
        group["weight_decay"],
        group["betas"],
        group["eps"],
        _remembered(states, "exp_avg"),
        _remembered(states, "exp_avg_sq"),
        states[0].get("step"),
    )


def _remembered(states: list[dict[str, Any]], name: str) -> Tensors | None:
    """What the optimiser remembers of each parameter; None before its first step."""
    found = [state.get(name) for state in states]
    return None if any(each is None for each in found) else tuple(each.detach() for each in found)  # type: ignore[union-attr]
