"""Generated texts whose true posterior is known: a small stand-in for real ones, and a truth for networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.core.errors import SpecError
from calibrant.core.registry import register
from calibrant.core.samples import InputShape, Published, Samples
from calibrant.data.text import FIRST, PADDING, check_sizes

MOST_ROWS = 10_000_000


@register("datasets", "synthetic-text")
@dataclass(frozen=True)
class SyntheticText:
    r"""Texts drawn word by word from a mixture that belongs to their class, so that the posterior is known.

    A word of class k is drawn from $p_k = (1 - s) q + s q_k$ with s the `signal`: q is Zipf's law, the same for all,
    and $q_k$ is Zipf's law over the same words in an order of the class's own. Classes are equally frequent, words
    independent, lengths even between half of `length` and all of it whatever the class; so the posterior of a text is
    $P(k \mid w) \propto \prod_t p_k(w_t)$, which `posterior` gives. With signal 0 it is 1/K everywhere. The 20 classes
    of the default stand in for `20newsgroups`. As there, 0 is padding and 1, never drawn, an unknown word. `seed`
    decides words and texts; an id is the row, test rows counted on from the training rows.
    """

    classes: int = 20
    rows: int = 4_000
    test: int = 2_000
    length: int = 32
    vocabulary: int = 1_000
    signal: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        check_sizes(self.vocabulary, self.length)
        for name, least in (("classes", 2), ("rows", 1), ("test", 1), ("seed", 0)):
            if not least <= getattr(self, name) <= MOST_ROWS:
                raise SpecError(f"{name} must be from {least} to {MOST_ROWS:,}, not {getattr(self, name):,}")
        if not 0 <= self.signal <= 1:
            raise SpecError(f"signal must be from 0 to 1, not {self.signal:g}")

    @property
    def words(self) -> np.ndarray[Any, Any]:
        """The probability of each token in each class [K, V], in float64; that of 0 and 1 is 0."""
        rng = np.random.default_rng([self.seed, 0])
        common = 1 / np.arange(1, self.vocabulary - FIRST + 1)
        common /= common.sum()
        own = np.stack([rng.permutation(common) for _ in range(self.classes)])
        return np.pad((1 - self.signal) * common + self.signal * own, ((0, 0), (FIRST, 0)))

    def load(self, data_dir: Path | None = None) -> Published:
        """The texts, drawn anew; nothing is fetched, and `data_dir` is not looked at."""
        words = self.words
        train, test = (self._draw(words, part) for part in (1, 2))
        return Published(
            name="synthetic-text",
            classes=tuple(f"class {k}" for k in range(self.classes)),
            shape=InputShape("text", (self.length,), self.vocabulary),
            train=Samples(*train, torch.arange(self.rows)),
            test=Samples(*test, torch.arange(self.rows, self.rows + self.test)),
        )

    def posterior(self, inputs: Tensor) -> Tensor:
        """The true probability of each class given the tokens [N, L], in float64 [N, K]."""
        floor = torch.finfo(torch.float64).tiny  # only of padding and unknown, which count nothing
        chances = torch.from_numpy(self.words).T.clamp(min=floor).log()
        known = inputs.long().cpu().where(inputs.cpu() >= FIRST, PADDING)
        return F.embedding_bag(known, chances, mode="sum", padding_idx=PADDING).softmax(1)

    def _draw(self, words: np.ndarray[Any, Any], part: int) -> tuple[Tensor, Tensor]:
        """Tokens [N, L] and labels of train (part 1) or test (part 2)."""
        rng = np.random.default_rng([self.seed, part])
        rows = self.rows if part == 1 else self.test
        labels = rng.integers(self.classes, size=rows)
        lengths = rng.integers((self.length + 1) // 2, self.length + 1, size=rows)
        uniform = rng.random((rows, self.length))
        inputs = np.empty((rows, self.length), np.int32)
        for k, ladder in enumerate(words.cumsum(axis=1)):
            mine = labels == k
            # below 1, even where rounding left the ladder a little short of it
            inputs[mine] = np.searchsorted(ladder[:-1], uniform[mine], side="right")
        inputs[np.arange(self.length) >= lengths[:, None]] = PADDING
        return torch.from_numpy(inputs), torch.from_numpy(labels)
