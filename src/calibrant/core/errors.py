"""The errors that a person will read: one sentence that names the thing, the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CalibrantError(ValueError):
    """Base of every error that Calibrant raises on purpose; the command line prints it and exits with 2."""


class SpecError(CalibrantError):
    """A spec string such as `ece(bins=15)` that cannot be read, or that names nothing we have."""


class InputError(CalibrantError):
    """Data that cannot be right: a file, an array, a label, a probability."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'focal'?`, or the list of what there is when nothing is near."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.6) or get_close_matches(
        word.lower(), names, n=1, cutoff=0.6
    )
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there is {', '.join(names)}" if names else ""
