"""How phi is moved: Adam or SGD as functions of plain tensors, which resume from a file and stand in a CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.meta import MetaRegularizer, Phi

BETA2 = 0.999
Memory = dict[str, Tensor]
"""What the meta-optimiser remembers, by name: `steps`, `first.NAME`, `second.NAME`."""


def remember(meta: MetaRegularizer, phi: Phi) -> Memory:
    """The memory before the first step."""
    some = next(iter(phi.values()))
    memory = {"steps": some.new_zeros(())}
    memory |= {f"first.{name}": torch.zeros_like(value) for name, value in phi.items()}
    if meta.optimizer == "adam":
        memory |= {f"second.{name}": torch.zeros_like(value) for name, value in phi.items()}
    return memory


def moved(
    meta: MetaRegularizer, phi: Phi, gradient: Phi, memory: Memory, share: Tensor | float = 1.0
) -> tuple[Phi, Memory]:
    """Phi after a step of the meta-optimiser, projected, and the memory; what is handed in stays as it is.

    `share` is the network's learning rate over its largest, by which the step shrinks if the piece says `anneal`.
    """
    rate = meta.lr * share if meta.anneal else meta.lr
    gradient = clipped(gradient, meta.clip)
    steps = memory["steps"] + 1
    new, after = {}, {"steps": steps}
    for name, value in phi.items():
        g, first = gradient[name], memory[f"first.{name}"]
        if meta.optimizer == "sgd":
            first = meta.momentum * first + g
            step = first
        else:
            first = torch.lerp(g, first, meta.momentum)
            second = torch.lerp(g.square(), memory[f"second.{name}"], BETA2)
            size = (second / (1 - BETA2**steps)).sqrt() + meta.eps
            step = first / (1 - meta.momentum**steps) / size
            after[f"second.{name}"] = second
        after[f"first.{name}"] = first
        new[name] = value - rate * step
    return meta.project(new), after


def clipped(gradient: Phi, limit: float) -> Phi:
    """The gradient, shortened to a norm of `limit` over all its tensors; 0 is no limit."""
    if not limit:
        return gradient
    norm = torch.stack([torch.linalg.vector_norm(value) for value in gradient.values()]).norm()
    share = (limit / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1)
    return {name: value * share for name, value in gradient.items()}
