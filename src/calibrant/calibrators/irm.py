"""Accuracy-preserving isotonic regression: one non-decreasing map for all classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from calibrant.calibrators.isotonic import isotonic_table
from calibrant.calibrators.lookup import lines
from calibrant.calibrators.pairs import Column, Target
from calibrant.calibrators.score_map import ScoreMap
from calibrant.core.calibration import Shape, State
from calibrant.core.registry import register


@register("calibrators", "irm", paper="zhang2020mixnmatch")
@dataclass(frozen=True)
class IRM(ScoreMap):
    r"""Isotonic regression for many classes that keeps the predicted one: one map for the scores of all classes.

    $\min_h \sum_i \sum_k (h(p_{ik}) - [y_i = k])^2$ over non-decreasing h, then $h(p) / \sum_k h(p_k)$. As all
    classes share h, their order stays, and N K pairs make it smooth where `isotonic` has N / K hits a class. With K = 2
    it is a symmetric `isotonic`. It fails where classes are biased differently: one map cannot tell them apart.
    The paper makes h strictly increasing with a small multiple of p and leaves its size open; `share` is that mixture
    with temperature scaling, learned on held-out halves (None) or given; at share 1 the predicted class wins a tie.
    h stays within 1e-7 of 0 and 1. *Deviation:* the released code does not renormalise rows.
    """

    share: float | None = None

    def __post_init__(self) -> None:
        self.check_share()

    @property
    def acts_on(self) -> Target:
        return "shared"

    @property
    def keeps_argmax(self) -> bool:
        return True

    def learn_map(self, questions: Iterator[Column]) -> dict[str, Tensor]:
        return isotonic_table(questions)

    def mapped(self, state: State, scores: Tensor) -> Tensor:
        return lines(state["x"], state["y"], scores)

    def tables(self, rows: int) -> dict[str, Shape]:
        return {"x": (rows, None), "y": (rows, None)}
