"""Street View House Numbers, cropped digits, from the two Matlab files that Stanford publishes."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.place import Place, show
from calibrant.core.registry import register
from calibrant.core.samples import Download, Published, Stock
from calibrant.data import store
from calibrant.data.formats import any_of
from calibrant.data.formats.pictures import Part, Pictures, published
from calibrant.data.tree import Tree

HOME = "http://ufldl.stanford.edu/housenumbers"
CLASSES = tuple("0123456789")
MOST_BYTES = 4 << 30


@register("datasets", "svhn", paper="netzer2011")
@dataclass(frozen=True)
class SVHN:
    """73,257 training and 26,032 test digits cut from photographs of house numbers, 32 x 32, in colour, ten classes.

    Digits are not equally frequent: 19 % are a 1 and 6 % a 9 in the training images. Images are not mirrored in
    training, since a mirrored digit is another sign or none. The 531,131 "extra" images are not part of it. The label
    10 of the published files is the digit 0, and here it is 0. An id is the row in the published order, test rows
    counted on from 73,257.
    """

    mirrored: ClassVar[bool] = False
    rows: ClassVar[tuple[int, int]] = (73_257, 26_032)
    downloads: ClassVar[tuple[Download, ...]] = (
        Download(f"{HOME}/train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
        Download(f"{HOME}/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
    )

    def read(self, source: Path) -> Stock:
        """The folder of the two files, or one of the formats of everyone."""
        wanted = "train_32x32.mat and test_32x32.mat"
        return any_of.read(source, digits, shape=(3, 32, 32), classes=CLASSES, wanted=wanted)

    def load(self, data_dir: Path | None = None) -> Published:
        """The images from the data directory, mapped."""
        return published("svhn", store.load("svhn", data_dir))


def digits(files: Tree) -> Pictures | None:
    """Both Matlab files."""
    train, test = files.named("train_32x32.mat"), files.named("test_32x32.mat")
    if train is None and test is None:
        return None
    if train is None or test is None:
        files.place.refuse(
            "one of train_32x32.mat and test_32x32.mat is missing; import the folder that has both"
        )
    return Pictures(part(files, train), part(files, test))


def part(files: Tree, name: str) -> Part:
    """X [32, 32, 3, N], row, column, colour, image; and y [N, 1], where 10 stands for the digit 0."""
    from scipy.io import loadmat, whosmat

    place = Place(str(files.place.source) if files.names == (name,) else f"{files.place.source}/{name}")
    data = files.read(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of variables that are not wanted
            shapes: dict[str, tuple[int, ...]] = {each: shape for each, shape, _ in whosmat(io.BytesIO(data))}
            if not {"X", "y"} <= set(shapes):
                place.refuse(
                    f"there are no X and y in it, but {', '.join(map(show, sorted(shapes))) or 'nothing'}"
                )
            if sum(math.prod(shapes[each]) for each in ("X", "y")) > MOST_BYTES:
                place.refuse("its X and y are larger than any SVHN; it is refused")
            held: dict[str, Any] = loadmat(io.BytesIO(data), variable_names=["X", "y"])
    except InputError:
        raise
    except Exception as error:  # whatever bytes can do to a parser
        place.refuse(
            f"this is no Matlab file of version 5, or a damaged one ({show(error, 60)}); get it again"
        )
    images, labels = np.asarray(held["X"]), np.asarray(held["y"]).reshape(-1)
    if images.ndim != 4 or images.dtype != np.uint8:
        place.refuse(
            f"its X is {images.dtype} of shape {list(images.shape)}, and uint8 [32, 32, 3, N] is wanted"
        )
    if not np.issubdtype(labels.dtype, np.number) or np.any(labels != np.rint(labels)):
        place.refuse("its y are no whole numbers; get it again")
    if labels.min(initial=1) < 0 or labels.max(initial=1) > 10:
        place.refuse("its y are not all from 1 to 10; get it again")
    return Part(images.transpose(3, 2, 0, 1), labels.astype(np.int64) % 10)
