"""Tiny-ImageNet-200, from the zip that Stanford's course publishes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from calibrant.core.place import Place, show
from calibrant.core.registry import register
from calibrant.core.samples import Download, Published, Stock
from calibrant.data import store
from calibrant.data.formats import any_of
from calibrant.data.formats.folders import KINDS, alike, decode, in_classes
from calibrant.data.formats.pictures import Part, Pictures, published
from calibrant.data.tree import Tree

NUMBER = 200


@register("datasets", "tiny-imagenet", paper="le2015")
@dataclass(frozen=True)
class TinyImageNet:
    """100,000 training and 10,000 test photographs, 64 x 64, in colour, of two hundred classes of ImageNet.

    The published test images have no labels, so what is published as validation is the test set here, as in the
    literature; validation is cut from the training images. Classes are in the order of their WordNet numbers, training
    images of a class in the order of their file names, test images in that of `val_annotations.txt`; an id is the row
    in that order, test rows counted on from 100,000. JPEG decoders may differ in the last bit of a pixel. Kept, it
    takes 1.35 GB; reading the files needs Pillow.
    """

    mirrored: ClassVar[bool] = True
    rows: ClassVar[tuple[int, int]] = (100_000, 10_000)
    downloads: ClassVar[tuple[Download, ...]] = (
        Download("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de"),
    )

    def read(self, source: Path) -> Stock:
        """The zip or its unpacked folder, or one of the formats of everyone."""
        wanted = "tiny-imagenet-200 with train and val_annotations.txt"
        kept = any_of.read(source, pictures, shape=(3, 64, 64), classes=None, wanted=wanted)
        if len(kept.classes) != NUMBER:
            Place(str(source)).refuse(f"it has {len(kept.classes)} classes, and Tiny-ImageNet has {NUMBER}")
        return kept

    def load(self, data_dir: Path | None = None) -> Published:
        """The images from the data directory, mapped."""
        return published("tiny-imagenet", store.load("tiny-imagenet", data_dir))


def pictures(files: Tree) -> Pictures | None:
    """`train/CLASS/images/*.JPEG`, and `val/images/*.JPEG` with their classes in `val_annotations.txt`."""
    annotations = files.named("val_annotations.txt")
    if annotations is None:
        return None
    root = annotations.removesuffix("val/val_annotations.txt")
    found = in_classes(files, f"{root}train/")
    classes = {name: label for label, name in enumerate(sorted(found))}
    rows = [(name, label) for each, label in classes.items() for name in found[each]]
    images = {name for name in files.ending(*KINDS) if name.startswith(f"{root}val/")}
    tests = []
    for line, text in enumerate(files.read(annotations).decode("utf-8", "replace").splitlines(), 1):
        image, label, *_ = [*text.split("\t"), ""]
        name = f"{root}val/images/{image}"
        if name not in images or label not in classes:
            Place(f"{files.place.source}/{annotations}").refuse(
                f"line {line} names the image {show(image)} of the class {show(label)}, and one of them is not there"
            )
        tests.append((name, classes[label]))
    train, test = (
        Part(
            decode([name for name, _ in part], files.read, files.place),
            np.array([y for _, y in part], np.int64),
        )
        for part in (rows, tests)
    )
    names = described(files, root, list(classes))
    return Pictures(*alike(train, test), names)


def described(files: Tree, root: str, classes: list[str]) -> tuple[str, ...]:
    """WordNet numbers with the first of their words, `n01443537 goldfish`, if `words.txt` is there."""
    if f"{root}words.txt" not in files.names:
        return tuple(classes)
    lines = files.read(f"{root}words.txt").decode("utf-8", "replace").splitlines()
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return tuple(f"{each} {words[each].split(',')[0].strip()}" if each in words else each for each in classes)
