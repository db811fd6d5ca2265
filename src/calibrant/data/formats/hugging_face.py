"""Image datasets as the Hugging Face hub stores them: parquet with encoded images, by pyarrow and Pillow on request."""

from __future__ import annotations

import importlib
import io
import json
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.place import Place, show
from calibrant.data.formats.folders import TEST, alike, decode
from calibrant.data.formats.pictures import Part, Pictures
from calibrant.data.tree import MOST_BYTES, Tree

IMAGES = ("image", "img")
LABELS = ("label", "labels", "fine_label", "fine_labels")


def find(files: Tree) -> bool:
    """Whether there are parquet files."""
    return bool(files.ending(".parquet"))


def read(files: Tree, size: int | None = None, image: str = "", label: str = "") -> Pictures:
    """Files whose names begin with train, and with test (or val, valid, validation), in the order of their names."""
    named = [
        (name.rsplit("/", 1)[-1].lower().removesuffix(".parquet"), name) for name in files.ending(".parquet")
    ]
    found = {
        split: [name for short, name in named if short.replace(".", "-").split("-")[0] == split]
        for split in ("train", *TEST)
    }
    tests = [split for split in TEST if found[split]]
    if not found["train"] or not tests:
        files.place.refuse(
            "among its parquet files there must be train and test: names such as train-00000-of-00001.parquet"
        )
    columns = (image,) if image else IMAGES, (label,) if label else LABELS
    parts, classes = [], None
    for split in ("train", tests[0]):
        read_parts = [_file(files, name, columns, size) for name in found[split]]
        shapes = {part.images.shape[2:] for part, _ in read_parts}
        if len(shapes) > 1:
            files.place.refuse(
                f"the images of {split} have more than one size; 'parquet(path=..., size=64)' gives them one"
            )
        channels = max(part.images.shape[1] for part, _ in read_parts)
        images = [
            np.broadcast_to(p.images, (len(p.images), channels, *p.images.shape[2:])) for p, _ in read_parts
        ]
        parts.append(Part(np.concatenate(images), np.concatenate([part.labels for part, _ in read_parts])))
        classes = classes or read_parts[0][1]
    return Pictures(*alike(parts[0], parts[1]), classes)


def _file(
    files: Tree, name: str, columns: tuple[tuple[str, ...], tuple[str, ...]], size: int | None
) -> tuple[Part, tuple[str, ...] | None]:
    """The images and labels of one file, and the names of the classes if its schema has them."""
    place = Place(f"{files.place.source}/{name}")
    arrow, parquet = _pyarrow(place)
    try:
        table = parquet.ParquetFile(io.BytesIO(files.read(name)))
        groups = [table.metadata.row_group(i).total_byte_size for i in range(table.metadata.num_row_groups)]
        if sum(groups) > MOST_BYTES:
            place.refuse(f"it unpacks to more than {MOST_BYTES:,} bytes, more than a dataset; it is refused")
        image, label = (_column(table.schema_arrow.names, choices, place) for choices in columns)
        packed, labels = [], []
        for batch in table.iter_batches(8192, columns=[image, label]):
            packed += batch.column(image).to_pylist()
            labels += batch.column(label).to_pylist()
        classes = _classes(table.schema_arrow.metadata or {}, label)
    except InputError:
        raise
    except (arrow.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        place.refuse(f"this is no parquet file, or a damaged one ({show(error, 60)}); get it again")
    for row, (each, number) in enumerate(zip(packed, labels, strict=True)):
        if not isinstance(each, dict) or not isinstance(each.get("bytes"), bytes):
            place.refuse(
                f"row {row} of the column {image} has no bytes; an image is {{bytes, path}}, with its bytes in it"
            )
        if not isinstance(number, int) or isinstance(number, bool):
            place.refuse(f"row {row} of the column {label} is {show(number)}, and a class is a whole number")
    rows = {f"row {row}": each["bytes"] for row, each in enumerate(packed)}
    return Part(decode(list(rows), rows.__getitem__, place, size), np.array(labels, np.int64)), classes


def _column(found: list[str], choices: tuple[str, ...], place: Place) -> str:
    there = [name for name in choices if name in found]
    if not there:
        shown = ", ".join(show(name) for name in found[:8])
        place.refuse(f"there is no column {' or '.join(choices)}; it has {shown}")
    return there[0]


def _classes(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    """The names of the classes, from what `datasets` writes into the schema."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
        return tuple(map(str, names)) or None
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _pyarrow(place: Place) -> tuple[Any, Any]:
    try:
        arrow = importlib.import_module("pyarrow")
        return arrow, importlib.import_module("pyarrow.parquet")
    except ImportError:
        place.refuse("reading parquet needs pyarrow; pip install 'calibrant[parquet]'")
