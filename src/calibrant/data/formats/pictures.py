"""What every reader of images hands over, and the one check that it has to pass before it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrant.core.place import Place, show
from calibrant.core.samples import InputShape, Published, Samples, Stock

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Part:
    """Images, uint8 [N, C, H, W], and their labels, integers [N]."""

    images: Array
    labels: Array


@dataclass(frozen=True, eq=False)
class Pictures:
    """The two published parts. `classes` are the names that the files give, if they do; `by_name` says that labels
    are only the places of names in `classes`, not numbers of the publisher."""

    train: Part
    test: Part
    classes: tuple[str, ...] | None = None
    by_name: bool = False


def stock(
    found: Pictures, place: Place, shape: Shape | None = None, classes: tuple[str, ...] | None = None
) -> Stock:
    """What is kept of images, if they have the expected shape and classes, as far as one is expected."""
    names = classes or found.classes or numbered(found.train.labels, found.test.labels)
    table = None
    if classes is not None and found.classes is not None:
        table = _same_classes(found, classes, place)
    parts = {}
    for name, part in (("train", found.train), ("test", found.test)):
        x = part.images
        _some(len(x), name, "image", place)
        if x.dtype != np.uint8 or x.ndim != 4:
            place.refuse(
                f"the {name} images are {x.dtype} of shape {list(x.shape)}, and uint8 images are wanted, 0 to 255"
            )
        if shape is not None and x.shape[1:] != shape:
            place.refuse(
                f"the {name} images are {_size(x)}, not {_size(np.empty((0, *shape)))}; is it another dataset?"
            )
        if x.shape[1:] != found.train.images.shape[1:]:
            place.refuse(f"training images are {_size(found.train.images)}, test images are {_size(x)}")
        y = labelled(len(x), part.labels, name, "image", len(names), place)
        parts[f"x_{name}"] = np.ascontiguousarray(x)
        parts[f"y_{name}"] = y if table is None else table[y]
    return Stock(parts, names)


def labelled(rows: int, labels: Array, name: str, noun: str, classes: int, place: Place) -> Array:
    """The labels of so many images or vectors (`noun`), in int64: one for each of at least one row, each a class."""
    y = _whole(labels, name, noun, place)
    if not classes:
        place.refuse("there is no class in it")
    _some(rows, name, noun, place)
    if rows != len(y):
        place.refuse(f"there are {rows:,} {name} {noun}s and {len(y):,} labels; each {noun} needs one")
    if y.min() < 0 or y.max() >= classes:
        row = int(np.flatnonzero((y < 0) | (y >= classes))[0])
        place.refuse(f"the label of {name} row {row} is {y[row]}, and there are classes 0 to {classes - 1}")
    return y.astype(np.int64)


def _some(rows: int, name: str, noun: str, place: Place) -> None:
    if not rows:
        place.refuse(f"there are no {name} {noun}s")


def numbered(*labels: Array) -> tuple[str, ...]:
    """The classes of labels that are only numbers: 0 to the largest."""
    most = max((int(y.max()) for y in labels if y.size and np.issubdtype(y.dtype, np.integer)), default=-1)
    return tuple(str(number) for number in range(min(most + 1, 1 << 20)))


def published(name: str, kept: Stock) -> Published:
    """Images or vectors as datasets hand them over; an id is the row in the files, test rows counted on from train."""
    arrays = {key: torch.from_numpy(np.asarray(value)) for key, value in kept.arrays.items()}
    rows, more = len(arrays["y_train"]), len(arrays["y_test"])
    size = tuple(arrays["x_train"].shape[1:])
    return Published(
        name=name,
        classes=kept.classes,
        shape=InputShape("image" if len(size) == 3 else "vector", size),
        train=Samples(arrays["x_train"], arrays["y_train"].long(), torch.arange(rows)),
        test=Samples(arrays["x_test"], arrays["y_test"].long(), torch.arange(rows, rows + more)),
    )


def _same_classes(found: Pictures, classes: tuple[str, ...], place: Place) -> Array | None:
    """How labels become the publisher's numbers, by the names of their classes; None where they are these already.

    Names that are not the publisher's are an error where a label means nothing else, and other spellings otherwise.
    """
    given = found.classes or ()
    if len(given) != len(classes):
        place.refuse(f"it has {len(given)} classes, and {len(classes)} are expected; is it another dataset?")
    ours = {_plain(name): number for number, name in enumerate(classes)}
    strange = [name for name in given if _plain(name) not in ours]
    if strange and not found.by_name:
        return None
    if strange:
        place.refuse(f"{show(strange[0])} is none of the classes, which are {show(', '.join(classes), 200)}")
    return np.array([ours[_plain(name)] for name in given], dtype=np.int64)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _whole(labels: Array, name: str, noun: str, place: Place) -> Array:
    labels = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        place.refuse(
            f"the {name} labels are {labels.dtype} of shape {list(labels.shape)}, and one integer per {noun} is wanted"
        )
    return labels


def _size(images: Array) -> str:
    return " x ".join(str(side) for side in images.shape[1:]) + " (channels, height, width)"
