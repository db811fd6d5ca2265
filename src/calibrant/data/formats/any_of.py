"""Which of the formats a source is in, for datasets that people have in several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from calibrant.core.place import Place
from calibrant.core.samples import Stock
from calibrant.data.formats import arrays, folders, hugging_face
from calibrant.data.formats.pictures import Pictures, Shape, stock
from calibrant.data.tree import Tree, tree


def read(
    source: Path,
    native: Callable[[Tree], Pictures | None],
    *,
    shape: Shape,
    classes: tuple[str, ...] | None,
    wanted: str,
) -> Stock:
    """The publisher's own files if `native` finds them, or an npz, parquet files, or folders by class.

    `wanted` says what the publisher's own files are called, for the message if none of all this is there.
    """
    place = Place(str(source))
    if source.suffix.lower() == ".npz":
        return stock(arrays.read(source, shape[0]), place, shape, classes)
    with tree(source) as files:
        found = native(files)
        if found is None and hugging_face.find(files):
            found = hugging_face.read(files)
        if found is None and (parts := folders.find(files)):
            found = folders.read(files, parts)
        if found is None:
            place.refuse(
                f"here is neither {wanted}, nor an npz with x_train, nor train and test as parquet files or as "
                "folders of images by class"
            )
        return stock(found, place, shape, classes)
