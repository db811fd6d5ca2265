"""The idx files of MNIST and its likes: a magic number, the sizes, and bytes; as they are or as gz."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from calibrant.core.place import Place, show
from calibrant.data.tree import Tree, gunzip

Array = np.ndarray[Any, Any]

MOST_BYTES = 1 << 30


def find(files: Tree, stem: str) -> str | None:
    """The file of one part: `train-images-idx3-ubyte`, with a dot as some write it, packed or not."""
    dotted = stem.replace("-idx", ".idx")
    return files.named(*(each + end for each in (stem, dotted) for end in ("", ".gz")))


def read(files: Tree, name: str, dimensions: int) -> Array:
    """The uint8 array of one file."""
    place = Place(f"{files.place.source}/{name}" if name != files.names[0] or len(files.names) > 1 else name)
    data = files.read(name)
    if name.endswith(".gz"):
        data = gunzip(data, MOST_BYTES, place)
    start = 4 + 4 * dimensions
    magic = 0x800 + dimensions  # 8 is unsigned byte
    if len(data) < start or struct.unpack_from(">I", data)[0] != magic:
        place.refuse(
            f"this is no idx file of bytes in {dimensions} dimensions (it begins with {show(data[:4].hex())})"
        )
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    if math.prod(shape) != len(data) - start:
        place.refuse(
            f"it has {len(data) - start:,} bytes of data, and its header says {math.prod(shape):,}; get it again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
