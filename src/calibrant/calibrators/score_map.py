"""Calibrators that are a map of single scores: what they share is where the map acts, and how far it is trusted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from calibrant.calibrators.held_out import learned_share
from calibrant.calibrators.pairs import Column, Target, columns
from calibrant.core.calibration import Calibrator, Scope, Shape, State, Top, warn
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import name_of
from calibrant.core.temperature import fit_temperature

_BLOCK = 1 << 20  # scores that are mapped at once on a CPU: what is in between stays near the cache
FLOOR = 1e-7
"""No map gives less than this, or more than 1 less this: an event that the fit rows lack is not impossible."""


class ScoreMap(Calibrator):
    """A map h of a score, and the share that it has beside temperature scaling: share * h + (1 - share) * scaled score.

    Share 1 is the method as published. Of a full vector h is renormalised first, and share None is learned on held-out
    halves, because a map for each class is easily worse than none; of the top label None is 1. A class that the fit
    rows lack keeps its score, a masked one stays masked.
    """

    share: float | None

    @property
    @abstractmethod
    def acts_on(self) -> Target:
        """Which scores are mapped."""

    @abstractmethod
    def learn_map(self, questions: Iterator[Column]) -> dict[str, Tensor]:
        """The tables of the map, a row for each question."""

    @abstractmethod
    def mapped(self, state: State, scores: Tensor) -> Tensor:
        """h of scores [N, K] or [N, 1], before the floor."""

    @abstractmethod
    def tables(self, rows: int) -> dict[str, Shape]:
        """The shapes of the tables of as many questions."""

    def questions(self, logits: Tensor, labels: Tensor) -> Iterator[Column]:
        """What the map is learned from."""
        return columns(logits, labels, self.acts_on)

    def rows(self, classes: int) -> int:
        """How many questions there are, which is how many rows the tables have."""
        return classes if self.acts_on == "classwise" else 1

    def share_for(self, classes: int) -> float | None:
        """The share that is used; None if it is to be learned."""
        return 1.0 if self.share is None and self.acts_on == "top" else self.share

    def check_share(self) -> None:
        """Refuse a share that is none."""
        if self.share is not None and not 0 <= self.share <= 1:
            raise CalibrantError(f"share of {name_of(self)} must lie between 0 and 1, not {self.share:g}")

    @property
    def scope(self) -> Scope:
        return "top" if self.acts_on == "top" else "full"

    @property
    def keeps_argmax(self) -> bool:
        return self.acts_on == "top"

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        device = logits.device
        state = self._fit(logits, labels)
        share, temperature = self.share_for(logits.shape[1]), 1.0
        if share != 1:
            fit = fit_temperature(logits, labels)
            if fit.bound is None:
                temperature = fit.temperature
            else:
                warn(
                    f"no best temperature: {fit.bound}; {name_of(self)} uses the model's own probabilities instead"
                )
        if self.acts_on == "top":
            right = int((logits.argmax(1) == labels).sum())
            if right in (0, len(labels)):
                warn(
                    f"every row is {'right' if right else 'wrong'}, of which {name_of(self)} learns no more than that:"
                    f" its map stays between {FLOOR:g} and 1 - {FLOOR:g}"
                )
        elif share is None:
            share = learned_share(self._fit, self._vector, logits, labels, temperature)
        state["share"] = torch.tensor(share, dtype=torch.float64)
        state["temperature"] = torch.tensor(temperature, dtype=torch.float64)
        return {name: tensor.to(device) for name, tensor in state.items()}

    def apply(self, state: State, logits: Tensor) -> Tensor | Top:
        if logits.device.type != "cpu" or torch.compiler.is_exporting():
            return self._rows(state, logits)
        step = max(1, _BLOCK // logits.shape[1])
        parts = [self._rows(state, logits[i : i + step]) for i in range(0, max(1, len(logits)), step)]
        if self.acts_on != "top":
            return torch.cat([part for part in parts if isinstance(part, Tensor)])
        tops = [part for part in parts if isinstance(part, Top)]
        return Top(torch.cat([t.predicted for t in tops]), torch.cat([t.confidence for t in tops]))

    def _rows(self, state: State, logits: Tensor) -> Tensor | Top:
        exact = logits.double()  # a step of a map is where rounding shows: here it is alike on every machine
        share = state["share"].to(exact)
        probs, scaled = exact.softmax(1), (exact / state["temperature"].to(exact)).softmax(1)
        if self.acts_on == "top":
            found = self._floored(state, probs.amax(1, keepdim=True))
            given = share * found + (1 - share) * scaled.amax(1, keepdim=True)
            return Top(logits.argmax(1), given[:, 0].clamp(FLOOR, 1 - FLOOR).to(logits))
        given = share * self._vector(state, probs, logits) + (1 - share) * scaled
        masked = logits == -torch.inf
        tiny = torch.finfo(logits.dtype).tiny
        out = given.clamp(min=tiny).log().masked_fill(masked, -torch.inf).to(logits)
        return keep_first(out, logits) if self.keeps_argmax else out

    def shapes(self, classes: int) -> dict[str, Shape]:
        rows = self.rows(classes)
        return {**self.tables(rows), "seen": (rows,), "share": (), "temperature": ()}

    def _fit(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        seen: list[bool] = []

        def noted() -> Iterator[Column]:
            for column in self.questions(logits, labels):
                seen.append(self.acts_on != "classwise" or len(column.hits) > 0)
                yield column

        return {**self.learn_map(noted()), "seen": torch.tensor(seen)}

    def _floored(self, state: State, scores: Tensor) -> Tensor:
        found = self.mapped(state, scores).clamp(FLOOR, 1 - FLOOR)
        return torch.where(state["seen"], found, scores)

    def _vector(self, state: State, probs: Tensor, logits: Tensor) -> Tensor:
        """h of every class, renormalised; 0 for a masked class."""
        found = self._floored(state, probs).masked_fill(logits == -torch.inf, 0)
        return found / found.sum(1, keepdim=True)


def keep_first(out: Tensor, logits: Tensor) -> Tensor:
    """Logits of a map that keeps the order, with the predicted class on top where rounding has made a tie of it."""
    first = logits.argmax(1, keepdim=True)
    top = out.gather(1, first)
    below = top - 8 * torch.finfo(out.dtype).eps * (1 + top.abs())
    return torch.minimum(out, below).scatter(1, first, top)
