"""MNIST and Fashion-MNIST, from the four idx files in which both are published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from calibrant.core.registry import register
from calibrant.core.samples import Download, Published, Stock
from calibrant.data import store
from calibrant.data.fashion_mini import CLASSES as FASHION
from calibrant.data.formats import any_of, idx
from calibrant.data.formats.pictures import Part, Pictures, published
from calibrant.data.tree import Tree

SHAPE = (1, 28, 28)
DIGITS = tuple("0123456789")
FILES = tuple(f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
WANTED = "train-images-idx3-ubyte with its three likes, or their .gz"
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"


@register("datasets", "fashion-mnist", paper="xiao2017")
@dataclass(frozen=True)
class FashionMNIST:
    """60,000 training and 10,000 test pictures of clothes, 28 x 28, grey, of ten classes with as many images each.

    An id is the row in the published files, test rows counted on from 60,000: the same ids as in `fashion-mini`, which
    is a subset of it. Shirts, T-shirts, pullovers and coats are hard to tell apart at this size, even for people, so a
    calibrated model is uncertain there.
    """

    mirrored: ClassVar[bool] = True
    rows: ClassVar[tuple[int, int]] = (60_000, 10_000)
    downloads: ClassVar[tuple[Download, ...]] = tuple(
        Download(f"{ZALANDO}/{name}.gz", f"md5:{md5}")
        for name, md5 in zip(
            FILES,
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            strict=True,
        )
    )

    def read(self, source: Path) -> Stock:
        """The folder of the four files, or one of the formats of everyone."""
        return any_of.read(source, four, shape=SHAPE, classes=FASHION, wanted=WANTED)

    def load(self, data_dir: Path | None = None) -> Published:
        """The images from the data directory, mapped."""
        return published("fashion-mnist", store.load("fashion-mnist", data_dir))


@register("datasets", "mnist", paper="lecun1998")
@dataclass(frozen=True)
class MNIST:
    """60,000 training and 10,000 test handwritten digits, 28 x 28, grey, of ten classes.

    It is too easy to tell methods apart: a small network is wrong in fewer than 100 of the 10,000 test rows, so
    that nearly all bins of a calibration error hold almost nothing. Images are not mirrored in training. An id is
    the row in the published files, test rows counted on from 60,000.
    """

    mirrored: ClassVar[bool] = False
    rows: ClassVar[tuple[int, int]] = (60_000, 10_000)
    downloads: ClassVar[tuple[Download, ...]] = tuple(
        Download(f"{MIRROR}/{name}.gz", f"md5:{md5}")
        for name, md5 in zip(
            FILES,
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            strict=True,
        )
    )

    def read(self, source: Path) -> Stock:
        """The folder of the four files, or one of the formats of everyone."""
        return any_of.read(source, four, shape=SHAPE, classes=DIGITS, wanted=WANTED)

    def load(self, data_dir: Path | None = None) -> Published:
        """The images from the data directory, mapped."""
        return published("mnist", store.load("mnist", data_dir))


def four(files: Tree) -> Pictures | None:
    """The four files, each packed or not."""
    paths = [idx.find(files, name) for name in FILES]
    if not any(paths):
        return None
    arrays = []
    for stem, path, dimensions in zip(FILES, paths, (3, 1, 3, 1), strict=True):
        if path is None:
            files.place.refuse(f"{stem} is missing; import the folder that has all four files")
        arrays.append(idx.read(files, path, dimensions))
    x_train, y_train, x_test, y_test = arrays
    return Pictures(
        Part(x_train[:, None], y_train.astype(np.int64)), Part(x_test[:, None], y_test.astype(np.int64))
    )
