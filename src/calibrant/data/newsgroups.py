"""20 Newsgroups by date: the messages are kept as they were sent, and become tokens when they are loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from calibrant.core.place import Place
from calibrant.core.registry import register
from calibrant.core.samples import Download, InputShape, Published, Samples, Stock
from calibrant.data import store
from calibrant.data.formats import messages
from calibrant.data.formats.messages import Message
from calibrant.data.text import Vocabulary, check_sizes

NUMBER = 20
QUOTED = re.compile(r"^\s*[>|}]|^In article|^Quoted from|writes in|(?:writes|wrote|says|said):")
"""What a line looks like that is quoted, or that announces a quote."""


@register("datasets", "20newsgroups", paper="lang1995")
@dataclass(frozen=True)
class Newsgroups:
    """11,314 training and 7,532 later test messages to twenty newsgroups of 1993: texts for `text_cnn`.

    `strip` takes away what tells the group without being about it, as in the field: *headers*, up to the first empty
    line; *footers*, what follows the last empty line or line of dashes, a signature more often than not; *quotes*,
    lines that begin with > | } or announce one ("writes:", "In article"). Some 3 % of messages are empty then.
    Tokens are words in lower case, the first `length` of a message; the `vocabulary` (padding 0 and unknown 1 among
    it) is of the words that stand in the most messages of the published training part, val and meta included.
    Labels are in alphabetical order of the groups; an id is the row in the order of group and message number, test
    rows counted on from 11,314. Neighbouring groups (religion, hardware) overlap, so that doubt is due.
    """

    vocabulary: int = 20_000
    length: int = 256
    strip: bool = True
    downloads: ClassVar[tuple[Download, ...]] = (
        Download(
            "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz",
            "sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
        ),
    )

    def __post_init__(self) -> None:
        check_sizes(self.vocabulary, self.length)

    def read(self, source: Path) -> Stock:
        """The by-date archive or its folder, or a jsonl of split, label, id and text (packed by xz or not)."""
        train, test = messages.read(source)
        classes = tuple(sorted({each.group for each in train}))
        place = Place(str(source))
        if len(classes) != NUMBER:
            place.refuse(f"its training part has {len(classes)} groups, and 20 Newsgroups has {NUMBER}")
        if strange := {each.group for each in test} - set(classes):
            place.refuse(f"its test part has the group {min(strange)}, which its training part has not")
        arrays = {f"{name}_train": array for name, array in packed(train, classes)._asdict().items()}
        arrays |= {f"{name}_test": array for name, array in packed(test, classes)._asdict().items()}
        return Stock(arrays, classes)

    def load(self, data_dir: Path | None = None) -> Published:
        """The messages from the data directory, stripped and turned into tokens: some seconds."""
        stock = store.load("20newsgroups", data_dir)
        train, test = (self.texts(stock, part) for part in ("train", "test"))
        known = Vocabulary.of(train, self.vocabulary)
        ids = torch.arange(len(train) + len(test))
        samples = [
            Samples(
                torch.from_numpy(known.encode(texts, self.length)),
                torch.from_numpy(np.array(stock.arrays[f"y_{part}"], np.int64)),
                each,
            )
            for part, texts, each in (
                ("train", train, ids[: len(train)]),
                ("test", test, ids[len(train) :]),
            )
        ]
        shape = InputShape("text", (self.length,), len(known))
        return Published("20newsgroups", stock.classes, shape, samples[0], samples[1])

    def texts(self, stock: Stock, part: str) -> list[str]:
        """The messages of "train" or "test" in order, as this dataset strips them."""
        everything = stock.arrays[f"text_{part}"].tobytes()
        ends = stock.arrays[f"ends_{part}"].tolist()
        found = [
            everything[start:end].decode("utf-8") for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        return [stripped(text) for text in found] if self.strip else found


class Packed(NamedTuple):
    """One part in arrays of numbers: the UTF-8 bytes of all its messages, where each ends, and their labels."""

    text: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]


def packed(part: Iterable[Message], classes: tuple[str, ...]) -> Packed:
    """The messages of a part, in the order of group and number, whatever order they were read in."""
    ordered = sorted(part, key=lambda each: (each.group, len(each.number), each.number))
    texts = [each.text for each in ordered]
    return Packed(
        np.frombuffer(b"".join(texts), np.uint8),
        np.cumsum([len(text) for text in texts], dtype=np.int64),
        np.array([classes.index(each.group) for each in ordered], np.int64),
    )


def stripped(message: str) -> str:
    """What is left of a message without headers, footer and quotes."""
    lines = message.partition("\n\n")[2].strip().split("\n")
    for place in range(len(lines) - 1, 0, -1):
        if not lines[place].strip().strip("-"):
            lines = lines[:place]
            break
    return "\n".join(line for line in lines if not QUOTED.search(line))
