"""Words, the vocabulary of the training texts, and rows of token ids."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core.errors import SpecError
from calibrant.data.text import Vocabulary, check_sizes, words


def test_words_are_runs_of_letters_and_digits() -> None:
    text = "Don't PANIC: 42 naïve_users' e-mails!\n\n(über 9.5)"
    assert list(words(text)) == ["don't", "panic", "42", "naïve", "users", "e", "mails", "über", "9", "5"]


def test_frequency_ranks_words_and_the_alphabet_breaks_ties() -> None:
    texts = ["b a", "a c b", "a d d d d", "e e e e e"]
    # a stands in 3 texts, b in 2; c, d, e in one each, however often
    assert Vocabulary.of(texts, 100).words == ("a", "b", "c", "d", "e")
    assert Vocabulary.of(texts, 5).words == ("a", "b", "c")  # 5 with padding and unknown
    assert Vocabulary.of(reversed(texts), 5) == Vocabulary.of(texts, 5)
    assert len(Vocabulary.of(texts, 5)) == 5


def test_rows_are_cut_and_padded() -> None:
    known = Vocabulary(("a", "b"))
    rows = known.encode(["a b x", "", "B", "b b b b a"], 4)
    assert rows.dtype == np.int32
    assert rows.tolist() == [[2, 3, 1, 0], [0, 0, 0, 0], [3, 0, 0, 0], [3, 3, 3, 3]]


@given(
    st.lists(st.text(alphabet="ab'c _-\n9ß", max_size=30), max_size=6), st.integers(3, 9), st.integers(1, 5)
)
def test_encoding_is_that_of_the_slow_loop(texts: list[str], size: int, length: int) -> None:
    def split(text: str) -> list[str]:
        return re.findall("[ab9cß]+(?:'[ab9cß]+)?", text.lower())

    counts: Counter[str] = Counter(word for text in texts for word in set(split(text)))
    kept = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    expected = []
    for text in texts:
        row = [kept.index(word) + 2 if word in kept else 1 for word in split(text)][:length]
        expected.append(row + [0] * (length - len(row)))
    assert Vocabulary.of(texts, size).encode(texts, length).tolist() == expected


@pytest.mark.parametrize(
    ("vocabulary", "length", "message"),
    [
        (2, 5, "vocabulary must be from 3 to 1,048,576, not 2"),
        (9, 0, "length must be from 1 to 1,048,576, not 0"),
        (9, 1 << 21, "length must be from 1 to 1,048,576, not 2,097,152"),
    ],
)
def test_sizes_that_no_text_has_are_refused(vocabulary: int, length: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_sizes(vocabulary, length)
