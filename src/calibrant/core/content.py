"""What a predictions file holds, whatever its format: named arrays, meta and a hash.

Formats differ in how they store this; which arrays make predictions, how they are spelled and how they are
hashed is decided here, once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from calibrant.core.arrays import RESERVED
from calibrant.core.numerics import blocks
from calibrant.core.place import Place, show

SCHEMA = 1
"""Version of what is stored. A reader refuses a newer one, and reads every older one."""

SPELLINGS = {
    "logits": ("logits",),
    "probs": ("probs",),
    "labels": ("labels", "label"),
    "confidence": ("confidence", "conf"),
    "correct": ("correct",),
    "predicted": ("predicted",),
    "ids": ("ids", "id"),
}
"""Every array that we know, and the names under which it is read."""


@dataclass(frozen=True)
class Content:
    """What was read: arrays by their own names, the user's meta, our entry in it, and where row 0 stands."""

    arrays: dict[str, np.ndarray[Any, Any]]
    meta: dict[str, Any] = field(default_factory=dict)
    entry: dict[str, Any] | None = None
    first_line: int | None = None


def choose(found: Collection[str], place: Place, noun: str, shown: Collection[str]) -> dict[str, str]:
    """Which stored names make predictions: logits first, then probabilities, then (confidence, correct).

    What else a file holds is left alone, except where leaving it could be a silent mistake.
    """
    names = {own: [name for name in spelled if name in found] for own, spelled in SPELLINGS.items()}
    wanted: tuple[str, ...]
    if names["logits"] or names["probs"]:
        wanted = ("logits", "probs", "labels", "ids")
        if not names["labels"]:
            place.refuse(
                f"there are {'logits' if names['logits'] else 'probs'} but no labels{_list(shown, noun)}"
            )
        if names["predicted"]:
            wanted += ("confidence", "predicted")
            if not names["confidence"]:
                place.refuse("there is predicted but no confidence; a top-label calibrator gives both")
        elif "confidence" in found and not names["correct"]:
            place.refuse("there is confidence but no predicted; add the predicted classes or rename it")
    elif names["confidence"] and names["correct"]:
        wanted = ("confidence", "correct", "ids")
    elif names["confidence"] or names["correct"]:
        there, missing = ("confidence", "correct") if names["confidence"] else ("correct", "confidence")
        place.refuse(f"there is {there} but no {missing}{_list(shown, noun)}")
    else:
        place.refuse(f"there are neither logits nor probs nor confidence{_list(shown, noun)}")
    for own in wanted:
        if len(names[own]) > 1:
            place.refuse(f"there are both {' and '.join(names[own])}; keep one of them")
    return {own: names[own][0] for own in wanted if names[own]}


def digest(arrays: Mapping[str, np.ndarray[Any, Any] | Tensor | None], meta: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and bytes of the arrays, and over the meta in one canonical form."""
    present = {name: array for name, array in arrays.items() if array is not None}
    kinds = [
        [name, str(a.dtype).removeprefix("torch."), list(a.shape)] for name, a in sorted(present.items())
    ]
    state = hashlib.sha256(json.dumps([SCHEMA, kinds, meta], sort_keys=True).encode())
    for _, array in sorted(present.items()):
        for rows in blocks(len(array), int(array.shape[1]) if array.ndim == 2 else 1):
            state.update(np.ascontiguousarray(_bits(array[rows])).view(np.uint8).data)
    return state.hexdigest()


def pack(meta: Mapping[str, Any], sha256: str, **more: str) -> str:
    """The meta as it stands in a file: the user's keys, and ours with schema version and hash."""
    return json.dumps({**meta, RESERVED: {"schema": SCHEMA, "sha256": sha256, **more}}, sort_keys=True)


def unpack(text: str, place: Place) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The user's meta and our entry, if a file of ours; a newer schema is refused."""
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError):
        _damaged(place, "its meta is no JSON")
    if not isinstance(meta, dict):
        place.refuse(f"its meta is a JSON {type(meta).__name__}, and an object such as {{...}} is wanted")
    if RESERVED not in meta:
        return meta, None
    entry = meta.pop(RESERVED)
    if not isinstance(entry, dict) or not isinstance(entry.get("schema"), int) or "sha256" not in entry:
        _damaged(place, f"the {RESERVED!r} entry of its meta is incomplete")
    if entry["schema"] > SCHEMA:
        place.refuse(
            f"written by a newer Calibrant (schema {entry['schema']}, this one reads up to {SCHEMA});"
            " upgrade with pip install -U calibrant"
        )
    return meta, entry


def verify(sha256: str, content: Content, place: Place) -> None:
    """Refuse a file of ours whose content is not what was written."""
    if content.entry is not None and content.entry["sha256"] != sha256:
        _damaged(place, "its content does not have the hash that it was written with")


def _damaged(place: Place, why: str) -> NoReturn:
    place.refuse(f"the file was changed or damaged, because {why}; write it again from its source")


def _bits(array: np.ndarray[Any, Any] | Tensor) -> np.ndarray[Any, Any]:
    if isinstance(array, Tensor):
        return (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).cpu().numpy()
    return array


def _list(found: Collection[str], noun: str) -> str:
    names = sorted(found)
    shown = ", ".join(show(name) for name in names[:8]) + (
        f" and {len(names) - 8} more" if len(names) > 8 else ""
    )
    wanted = "logits or probs with labels, or confidence with correct, are wanted"
    return f"; the {noun} are {shown or 'none'}, and {wanted}"
