"""How predictions lie in a table: one row per sample, one column per class, the same in parquet and csv."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.core.content import choose
from calibrant.core.place import Place, show

Array = np.ndarray[Any, Any]

COLUMN = re.compile(r"(logit|prob)_([0-9]+)")
ROWS = 1 << 14
"""Rows that are read or written together."""


def layout(header: Sequence[str], place: Place) -> dict[str, list[int]]:
    """Which columns make which array: `logit_0..` or `prob_0..` by their numbers, others by name."""
    classes: dict[str, dict[int, int]] = {"logits": {}, "probs": {}}
    named: dict[str, int] = {}
    for position, name in enumerate(header):
        match = COLUMN.fullmatch(name)
        if match is None:
            if name in named:
                place.refuse(f"there are two columns {show(name)}; keep one of them")
            named[name] = position
            continue
        group, number = classes[f"{match[1]}s"], int(match[2])
        if number in group:
            place.refuse(f"there are two columns {match[1]}_{number}; keep one of them")
        group[number] = position
    for own, group in classes.items():
        if not group:
            continue
        if own in named:
            place.refuse(f"there are both {own} and {own[:-1]}_0..; keep one of them")
        gap = next((number for number in range(len(group)) if number not in group), None)
        if gap is not None:
            place.refuse(
                f"column {own[:-1]}_{gap} is missing; {own[:-1]}_0 to {own[:-1]}_{max(group)} are wanted"
            )
    found = [*named, *(own for own, group in classes.items() if group)]
    chosen = choose(found, place, "columns", header)
    return {
        own: [named[name]] if name in named else [classes[name][k] for k in range(len(classes[name]))]
        for own, name in chosen.items()
    }


def columns(arrays: Mapping[str, Array]) -> list[str]:
    """The header under which arrays are written, in the order of `pieces`."""
    header = []
    for own, name in _ORDER.items():
        if own in arrays:
            array = arrays[own]
            header += [name] if array.ndim == 1 else [f"{name}_{k}" for k in range(array.shape[1])]
    return header


def pieces(arrays: Mapping[str, Array]) -> Iterator[list[Array]]:
    """The columns of a table, some rows at a time."""
    count = len(next(iter(arrays.values())))
    for start in range(0, count, ROWS):
        piece: list[Array] = []
        for own in _ORDER:
            if own in arrays:
                rows = arrays[own][start : start + ROWS]
                piece += [rows] if rows.ndim == 1 else list(np.ascontiguousarray(rows.T))
        yield piece


_ORDER = {
    "ids": "id",
    "labels": "label",
    "correct": "correct",
    "logits": "logit",
    "probs": "prob",
    "confidence": "confidence",
    "predicted": "predicted",
}
