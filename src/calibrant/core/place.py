"""Where data came from, and which rows of it are at fault: the vocabulary of every message about data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from calibrant.core.errors import InputError


@dataclass(frozen=True)
class Place:
    """Where data came from, so that an error can name the file, the row and, in a text file, the line."""

    source: str = "memory"
    first_line: int | None = None

    def refuse(self, text: str) -> NoReturn:
        """Raise the one sentence, with the file in front."""
        where = "" if self.source == "memory" else f"{show(self.source, 300)}: "
        raise InputError(where + text)

    def row(self, index: int) -> str:
        """`row 12`, with the line of the file where that is another number."""
        return f"row {index}" if self.first_line is None else f"row {index} (line {index + self.first_line})"


@dataclass
class Tally:
    """The first row that has a fault, and how many have it."""

    first: int = -1
    count: int = 0

    def add(self, at_fault: Tensor, start: int = 0) -> None:
        """Count the true entries of a mask whose first row is `start`."""
        number = int(at_fault.sum())
        if number and self.first < 0:
            self.first = start + int(at_fault.to(torch.uint8).argmax())
        self.count += number

    def show(self, place: Place) -> str:
        """`row 12`, or `row 12 (first of 3 such rows)`."""
        return place.row(self.first) + (f" (first of {self.count} such rows)" if self.count > 1 else "")


def show(text: object, limit: int = 40) -> str:
    """A value for a message: on one line, printable and not too long."""
    shown = str(text)
    shown = shown if shown.isprintable() else repr(shown)[1:-1]
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
