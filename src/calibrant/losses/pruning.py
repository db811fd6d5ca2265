"""Dynamic data pruning: training rows of low confidence are dropped every few epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.registry import register


@register("augment", "pruning", paper="patra2023")
@dataclass(frozen=True)
class Pruning:
    r"""Dynamic data pruning: every few epochs the least confident rows leave training for good.

    After every `every` epochs the `fraction` of the remaining rows with the lowest top-label confidence
    $\max_k p_k$ is dropped, so after m prunings about $(1 - \mathrm{fraction})^m$ of them is left. Fraction 0 keeps
    all. The network sees ever fewer hard rows: more predictions become confident, training becomes faster, and
    accuracy on hard or rare kinds of rows suffers. The paper joins it to the penalty `huber`.
    Pinned by the paper's abstract: low confidence, train-time, every few epochs. The two numbers are ours, and no
    average over epochs is taken: what scores are is up to the caller.
    """

    fraction: float = 0.1
    every: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise CalibrantError(f"fraction must be at least 0 and below 1, not {self.fraction:g}")
        if self.every < 1:
            raise CalibrantError(f"every must be at least 1 epoch, not {self.every}")

    def due(self, epoch: int) -> bool:
        """Whether rows are dropped after this epoch, counted from 1."""
        return epoch > 0 and epoch % self.every == 0

    def keep(self, ids: Tensor, scores: Tensor) -> Tensor:
        """The ids that stay, in their order: all but the floor(fraction N) lowest scores; of equals the later go."""
        if ids.ndim != 1 or ids.shape != scores.shape:
            raise InputError(
                f"ids {list(ids.shape)} and scores {list(scores.shape)} must be two columns of one length"
            )
        gone = math.floor(self.fraction * len(ids))
        order = torch.sort(scores, descending=True, stable=True).indices[: len(ids) - gone]
        return ids[order.sort().values]
