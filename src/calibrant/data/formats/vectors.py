"""Rows of numbers, as a numpy archive holds them, and the check that they have to pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant.core.place import Place
from calibrant.core.samples import Stock
from calibrant.data.formats.pictures import labelled, numbered

Array = np.ndarray[Any, Any]


def stock(arrays: Mapping[str, Array], place: Place) -> Stock:
    """What is kept of vectors, floats [N, D] under `x_train` and `x_test`: float32, all finite, of one length."""
    names = numbered(arrays["y_train"], arrays["y_test"])
    parts: dict[str, Array] = {}
    for name in ("train", "test"):
        x = arrays[f"x_{name}"]
        if x.ndim != 2 or not np.issubdtype(x.dtype, np.floating):
            place.refuse(
                f"x_{name} is {x.dtype} of shape {list(x.shape)}; images need [N, H, W], [N, H, W, C] or"
                " [N, C, H, W], and vectors [N, D] a floating dtype"
            )
        parts[f"y_{name}"] = labelled(len(x), arrays[f"y_{name}"], name, "vector", len(names), place)
        parts[f"x_{name}"] = _single(x, name, place)
    length, other = (parts[f"x_{name}"].shape[1] for name in ("train", "test"))
    if length != other or not length:
        place.refuse(
            f"training vectors have {length} numbers, test vectors {other}; both need the same, at least 1"
        )
    return Stock(parts, names)


def _single(x: Array, name: str, place: Place) -> Array:
    """The numbers in float32, in which all have to be finite."""
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(x, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(single).all(1))
    if len(bad):
        row = int(bad[0])
        value = x[row][~np.isfinite(single[row])][0]
        place.refuse(f"{name} row {row} holds {value}, and finite numbers of float32 are wanted")
    return single
