"""A numpy archive of `x_train`, `y_train`, `x_test`, `y_test`, as Keras and many a script write it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core import npz
from calibrant.core.place import Place, show
from calibrant.data.formats.pictures import Part, Pictures

Array = np.ndarray[Any, Any]

NAMES = ("x_train", "y_train", "x_test", "y_test")


def read(path: Path, channels: int | None = None) -> Pictures:
    """Images of uint8, [N, H, W], [N, H, W, C] or [N, C, H, W]: C is the side that is 1 or 3."""
    place = Place(str(path))
    return pictures(held(path, place), place, channels)


def held(path: Path, place: Place) -> dict[str, Array]:
    """The four arrays, as they are stored."""

    def choice(found: list[str]) -> Mapping[str, str]:
        missing = [name for name in NAMES if name not in found]
        if missing:
            there = ", ".join(show(each) for each in sorted(found)[:8])
            place.refuse(f"there is no {missing[0]}; {', '.join(NAMES)} are wanted, and it holds {there}")
        return {name: name for name in NAMES}

    return npz.members(path, place, choice)[0]


def pictures(arrays: Mapping[str, Array], place: Place, channels: int | None = None) -> Pictures:
    """The arrays as images."""
    train, test = (
        Part(_planes(arrays[f"x_{name}"], f"x_{name}", channels, place), arrays[f"y_{name}"])
        for name in ("train", "test")
    )
    return Pictures(train, test)


def _planes(images: Array, name: str, channels: int | None, place: Place) -> Array:
    """Images as [N, C, H, W], from the one order of their sides that can be meant."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        place.refuse(f"{name} has the shape {list(images.shape)}; [N, H, W, C] or [N, C, H, W] are images")
    possible = (channels,) if channels is not None else (1, 3)
    last, first = images.shape[3] in possible, images.shape[1] in possible
    if last and first:
        place.refuse(
            f"{name} of shape {list(images.shape)} can be read as two kinds of images; store one channel side"
        )
    if not last and not first:
        place.refuse(
            f"{name} has the shape {list(images.shape)}, and no side of {' or '.join(map(str, possible))} "
            "for the channels is first or last"
        )
    return images.transpose(0, 3, 1, 2) if last else images
