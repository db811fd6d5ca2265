"""Scaling, then bins that average what was scaled: few values, whose calibration can be verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.histogram import mass_cuts
from calibrant.calibrators.lookup import step_table, steps
from calibrant.calibrators.pairs import Array, columns
from calibrant.calibrators.score_map import FLOOR, keep_first
from calibrant.core.binning import check_bins, weighted_mass_starts
from calibrant.core.calibration import Calibrator, Scope, Shape, State, Top
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register
from calibrant.core.spec import build

_PREFIX = "scaler."


@register("calibrators", "scaling_binning", paper="kumar2019verified")
@dataclass(frozen=True)
class ScalingBinning(Calibrator):
    r"""Scales the logits with few parameters, then replaces each scaled probability by the mean of its bin.

    $h(s) = \frac{1}{n_b} \sum_{i \in b} g(z_i)$ with g the fitted `scaler`: the bins average the scaled outputs, not
    the hits as in `histogram`, so that they add next to no noise, and a calibration error of `bins` values can be
    estimated without bias, which that of continuous outputs cannot. With very many bins it is the scaler itself, and
    where the scaler is wrong, so are the bins. "top" has equal-mass bins of the confidence, as published. "full" has
    bins for all classes together, renormalised; equal numbers of expected hits are in each, $\sum_{i \in b} g$, since
    of 100 classes nearly all scores are near 0. The scaler's class stays, and values lie within 1e-7 of 0 and 1.
    *Deviation:* the same rows serve the scaler and the bins, as in the released code; the theory splits them.
    """

    bins: int = 100
    target: Literal["full", "top"] = "full"
    scaler: str = "temperature"

    def __post_init__(self) -> None:
        check_bins(self.bins)
        first = self.first
        if first.scope != "full" or isinstance(first, ScalingBinning):
            raise CalibrantError(
                f"scaler of scaling_binning must map logits to logits, as 'temperature' does, and {first} does not"
            )

    @property
    def first(self) -> Calibrator:
        """The scaler."""
        found = build(self.scaler, "calibrators")
        if not isinstance(found, Calibrator) or not found.settled:
            raise CalibrantError(f"scaler of scaling_binning must be one calibrator, not {self.scaler!r}")
        return found

    @property
    def scope(self) -> Scope:
        return self.target

    @property
    def keeps_argmax(self) -> bool:
        return self.target == "top" or self.first.keeps_argmax

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        first = self.first
        inner = first.learn(logits, labels)
        scaled = _full(first.apply(inner, logits))
        question = next(columns(scaled, labels, "top" if self.target == "top" else "shared"))
        scores = question.scores.astype(np.float64)
        table = step_table(*([part] for part in _bin_means(scores, self.bins, self.target == "full")))
        state = {name: tensor.to(logits.device) for name, tensor in table.items()}
        return {**{_PREFIX + name: tensor for name, tensor in inner.items()}, **state}

    def apply(self, state: State, logits: Tensor) -> Tensor | Top:
        inner = {name.removeprefix(_PREFIX): t for name, t in state.items() if name.startswith(_PREFIX)}
        scaled = _full(self.first.apply(inner, logits))
        probs = scaled.double().softmax(1)  # beside an edge rounding would show
        if self.target == "top":
            found = steps(state["edges"], state["levels"], probs.amax(1, keepdim=True))
            return Top(scaled.argmax(1), found[:, 0].clamp(FLOOR, 1 - FLOOR).to(logits))
        masked = logits == -torch.inf
        found = steps(state["edges"], state["levels"], probs).clamp(FLOOR, 1 - FLOOR).masked_fill(masked, 0)
        return keep_first((found / found.sum(1, keepdim=True)).log().to(logits), scaled)

    def shapes(self, classes: int) -> dict[str, Shape]:
        inner = self.first.shapes(classes)
        own: dict[str, Shape] = {"edges": (1, None), "levels": (1, None)}
        return {**{_PREFIX + name: shape for name, shape in inner.items()}, **own}


def _bin_means(scores: Array, bins: int, by_hits: bool) -> tuple[Array, Array]:
    """Inner edges midway between groups of sorted scores, and the mean of each group."""
    cuts = mass_cuts(scores, bins)
    if by_hits:
        starts = weighted_mass_starts(scores, bins)[1:]
        cuts = np.unique((scores[starts - 1] + scores[starts]) / 2)
    starts = np.unique(np.concatenate([[0], np.searchsorted(scores, cuts, "right")]))
    starts = starts[starts < len(scores)]
    middle = (scores[starts[1:] - 1] + scores[starts[1:]]) / 2
    return middle, np.add.reduceat(scores, starts) / np.diff(starts, append=len(scores))


def _full(given: Tensor | Top) -> Tensor:
    assert isinstance(given, Tensor), "the scope of the scaler was checked when it was made"
    return given
