"""CIFAR-10 and CIFAR-100 from what Krizhevsky publishes: pickles of Python 2, or records of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from calibrant.core.place import Place
from calibrant.core.registry import register
from calibrant.core.samples import Download, Published, Stock
from calibrant.data import store
from calibrant.data.formats import any_of
from calibrant.data.formats.pickled import unpickle
from calibrant.data.formats.pictures import Part, Pictures, published
from calibrant.data.tree import Tree

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
HOME = "https://www.cs.toronto.edu/~kriz"
CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES_100 = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905 (as a list, a hundred lines)
)


@register("datasets", "cifar10", paper="krizhevsky2009")
@dataclass(frozen=True)
class CIFAR10:
    """50,000 training and 10,000 test photographs, 32 x 32, in colour, of ten classes with as many images each.

    Read from the version for Python or the binary one, which have the same images in the same order, from an npz,
    from parquet of the Hugging Face hub or from folders. An id is the row in that order, test rows counted on from
    the size of train. Some test images have a near duplicate among the training images (about 3 %), and some labels
    are wrong (about 0.5 % of test), so that confidence 1 in every row is not what a perfect model shows.
    """

    mirrored: ClassVar[bool] = True
    rows: ClassVar[tuple[int, int]] = (50_000, 10_000)
    downloads: ClassVar[tuple[Download, ...]] = (
        Download(f"{HOME}/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
    )

    def read(self, source: Path) -> Stock:
        """The archive or folder `cifar-10-batches-py` or `-bin`, or one of the formats of everyone."""
        wanted = "data_batch_1 with its likes and test_batch"
        return any_of.read(source, batches_10, shape=SHAPE, classes=CLASSES_10, wanted=wanted)

    def load(self, data_dir: Path | None = None) -> Published:
        """The images from the data directory, mapped."""
        return published("cifar10", store.load("cifar10", data_dir))


@register("datasets", "cifar100", paper="krizhevsky2009")
@dataclass(frozen=True)
class CIFAR100:
    """50,000 training and 10,000 test photographs, 32 x 32, in colour, of a hundred classes ("fine" labels).

    A class has 500 training images and 100 test images, so that an error of one class is known to 5 points only, and
    classwise errors are mostly noise. Read from the same formats as `cifar10`; the twenty "coarse" labels are left out.
    """

    mirrored: ClassVar[bool] = True
    rows: ClassVar[tuple[int, int]] = (50_000, 10_000)
    downloads: ClassVar[tuple[Download, ...]] = (
        Download(f"{HOME}/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
    )

    def read(self, source: Path) -> Stock:
        """The archive or folder `cifar-100-python` or `-binary`, or one of the formats of everyone."""
        wanted = "the files train and test, or train.bin and test.bin"
        return any_of.read(source, batches_100, shape=SHAPE, classes=CLASSES_100, wanted=wanted)

    def load(self, data_dir: Path | None = None) -> Published:
        """The images from the data directory, mapped."""
        return published("cifar100", store.load("cifar100", data_dir))


def batches_10(files: Tree) -> Pictures | None:
    """Five training batches and a test batch, pickled or binary."""
    stems = [f"data_batch_{number}" for number in range(1, 6)]
    if files.named("data_batch_1") or files.named("test_batch"):
        train = [pickled(files, stem, "labels") for stem in stems]
        return Pictures(joined(train), pickled(files, "test_batch", "labels"))
    if files.named("data_batch_1.bin") or files.named("test_batch.bin"):
        train = [binary(files, f"{stem}.bin", 1) for stem in stems]
        return Pictures(joined(train), binary(files, "test_batch.bin", 1))
    return None


def batches_100(files: Tree) -> Pictures | None:
    """One training file and one test file, pickled or binary."""
    if files.named("train"):
        return Pictures(pickled(files, "train", "fine_labels"), pickled(files, "test", "fine_labels"))
    if files.named("train.bin"):
        return Pictures(binary(files, "train.bin", 2), binary(files, "test.bin", 2))
    return None


def pickled(files: Tree, name: str, labels: str) -> Part:
    """A dict of `data`, uint8 [N, 3072], and a list of labels."""
    path = present(files, name)
    place = Place(f"{files.place.source}/{path}")
    held = unpickle(files.read(path), place)
    if not isinstance(held, dict):
        place.refuse(f"the pickle holds a {type(held).__name__}, and a dict with data and {labels} is wanted")
    batch: dict[Any, Any] = {
        key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in held.items()
    }
    missing = [key for key in ("data", labels) if key not in batch]
    if missing:
        other = "; is it the other CIFAR?" if {"labels", "fine_labels"} & set(batch) else ""
        place.refuse(f"the pickle has no {missing[0]!r}{other}")
    data, numbers = batch["data"], batch[labels]
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
        or data.ndim != 2
        or data.shape[1] != PIXELS
    ):
        place.refuse(f"its data are no uint8 array of {PIXELS:,} columns; get it again")
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        place.refuse(f"its {labels} are no list of whole numbers; get it again")
    if len(numbers) != len(data):
        place.refuse(f"it has {len(data):,} images and {len(numbers):,} labels; get it again")
    if any(not 0 <= number < 256 for number in numbers):
        place.refuse(f"its {labels} are not all from 0 to 255; get it again")
    return Part(data.reshape(-1, *SHAPE), np.array(numbers, np.int64))


def binary(files: Tree, name: str, labels: int) -> Part:
    """Records of one or two label bytes, of which the last counts, and 3,072 bytes of pixels."""
    path = present(files, name)
    data = np.frombuffer(files.read(path), np.uint8)
    if not len(data) or len(data) % (PIXELS + labels):
        Place(f"{files.place.source}/{path}").refuse(
            f"it has {len(data):,} bytes, no multiple of {PIXELS + labels:,}; get it again"
        )
    records = data.reshape(-1, PIXELS + labels)
    return Part(records[:, labels:].reshape(-1, *SHAPE), records[:, labels - 1].astype(np.int64))


def present(files: Tree, name: str) -> str:
    """The path of a file that must be there."""
    path = files.named(name)
    if path is None:
        files.place.refuse(f"{name} is missing in it; get it again")
    return path


def joined(parts: list[Part]) -> Part:
    """Parts one after the other."""
    return Part(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))
