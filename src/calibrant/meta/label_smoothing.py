"""Learned label smoothing: how much of the target goes to other classes, and to which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.meta import Head, MetaRegularizer, Phi, term_of
from calibrant.core.objective import State, Summand
from calibrant.core.pointwise import check_batch, is_soft, log_probs, widen
from calibrant.core.registry import register
from calibrant.core.soft import full_precision
from calibrant.meta.base_loss import class_numbers, mean_of, present, with_rest

SMALL = 1e-12  # under a sum of shares that is divided by


@register("meta", "label_smoothing", paper="bohdal2021")
@dataclass(frozen=True)
class LearnedLabelSmoothing(MetaRegularizer):
    r"""Label smoothing whose amount is learned: one number, one for each class, or one for each pair of classes.

    The base's `ce` is taken against $q = (1 - \epsilon_y)\,\mathrm{onehot}(y) + \epsilon_y / K$, with one epsilon, or
    one for each label ("class"); with "class-to-class" against $q_y = 1 - \epsilon_y$, $q_k = \epsilon_y s_{yk}$, where
    the shares s of the other classes are learned too. Epsilon 0 is `ce`; a constant one is the loss `label_smoothing`.
    Projection keeps each epsilon in [0, `bound`] and the shares a distribution. From `start` 0 it moves only once
    the meta-objective wants less confidence; until then it is stuck at 0, which `epsilon_mean` shows.
    *Deviation:* learned by the lookahead of the head alone, with means in place of sums.
    """

    kind: Literal["scalar", "class", "class-to-class"] = "scalar"
    start: float = 0.0
    bound: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.start <= self.bound <= 1 or self.bound == 0:
            raise CalibrantError(
                f"start and bound must keep 0 <= start <= bound <= 1 and bound > 0,"
                f" not start={self.start:g}, bound={self.bound:g}"
            )

    def check(self, base: Summand) -> None:
        self._taken(base)

    def _taken(self, base: Summand) -> Any:
        return term_of(
            base,
            "ce",
            "and the meta-regulariser label_smoothing softens the labels of exactly one; write 'ce'",
        )

    def init(self, features: Tensor, classes: int, *, seed: int = 0) -> Phi:
        """All epsilons at the start, all shares equal."""
        like = widen(features)
        size = () if self.kind == "scalar" else (classes,)
        phi = {"epsilon": like.new_full(size, self.start)}
        if self.kind == "class-to-class":
            phi["shares"] = like.new_full((classes, classes), 1 / (classes - 1)).fill_diagonal_(0)
        return phi

    def targets(self, phi: Phi, classes: int) -> Tensor:
        """For each class [K, K] the distribution that stands in place of its label."""
        epsilon = phi["epsilon"].expand(classes)[:, None]
        own = torch.eye(classes, dtype=epsilon.dtype, device=epsilon.device)
        if self.kind == "class-to-class":
            shares = phi["shares"] * (1 - own)
            others = shares / shares.sum(1, keepdim=True).clamp_min(SMALL)
        else:
            others = torch.full_like(own, 1 / classes)
        return (1 - epsilon) * own + epsilon * others

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
        factor, own, rest = self._taken(base)
        check_batch(logits, labels)
        z = widen(logits)
        classes = z.shape[1]
        weight = class_numbers(own, z)
        given = labels if is_soft(labels) else F.one_hot(present(own, labels), classes)
        with full_precision(z.device):
            q = given.to(z.dtype) @ self.targets(phi, classes).to(z.dtype)
        rows = -(log_probs(z) * (q if weight is None else q * weight)).sum(1)
        return with_rest(factor, mean_of(own, rows, labels, weight), rest, state, logits, labels)

    def project(self, phi: Phi) -> Phi:
        """Each epsilon into [0, bound]; shares not negative, 0 for the class itself, of sum 1 in each row."""
        allowed = {"epsilon": phi["epsilon"].clamp(0, self.bound)}
        if self.kind == "class-to-class":
            shares = phi["shares"].clamp_min(0)
            shares = shares - shares.diag().diag()
            total = shares.sum(1, keepdim=True)
            even = (1 - torch.eye(len(shares), dtype=shares.dtype, device=shares.device)) / (len(shares) - 1)
            allowed["shares"] = torch.where(total > SMALL, shares / total.clamp_min(SMALL), even)
        return allowed

    def watched(self, phi: Phi, features: Tensor) -> tuple[str, Tensor]:
        return "epsilon", phi["epsilon"]
