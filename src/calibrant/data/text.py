"""From texts to rows of token ids: words, a vocabulary of the training texts, and padding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from calibrant.core.errors import SpecError

PADDING, UNKNOWN, FIRST = 0, 1, 2
"""What stands behind a text, for a word outside the vocabulary, and for the first word in it."""

MOST_TOKENS = 1 << 20
"""What a vocabulary or a text may have at most; each costs memory whether it is used or not."""

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def words(text: str) -> Iterator[str]:
    """Runs of letters and digits in lower case; an apostrophe inside, as in `don't`, joins, all else separates."""
    return (found[0] for found in WORD.finditer(text.lower()))


@dataclass(frozen=True)
class Vocabulary:
    """Words by their number, which is their place plus 2: 0 is padding, 1 is every word that is not here."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """The words that stand in the most texts, those in equally many by the alphabet; `size` counts 0 and 1 too."""
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(set(words(text)))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(ranked[: size - FIRST]))

    def __len__(self) -> int:
        return len(self.words) + FIRST

    def encode(self, texts: Sequence[str], length: int) -> np.ndarray[Any, Any]:
        """Ids [N, L] in int32: the first `length` words of each text, and 0 behind a shorter one."""
        ids = {word: number for number, word in enumerate(self.words, FIRST)}
        rows = np.full((len(texts), length), PADDING, np.int32)
        for row, text in zip(rows, texts, strict=True):
            found = [ids.get(word, UNKNOWN) for word in islice(words(text), length)]
            row[: len(found)] = found
        return rows


def check_sizes(vocabulary: int, length: int) -> None:
    """Refuse a vocabulary or a length that no text can have."""
    for name, size, least in (("vocabulary", vocabulary, FIRST + 1), ("length", length, 1)):
        if not least <= size <= MOST_TOKENS:
            raise SpecError(f"{name} must be from {least} to {MOST_TOKENS:,}, not {size:,}")
