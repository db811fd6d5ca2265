"""`python -m calibrant.data.fashion_mini FROM` makes the embedded file again, to the byte, from the published files.

FROM is the folder with the four published files `{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz`. Debian has them:
`apt-get download dataset-fashion-mnist`, then `dpkg -x dataset-fashion-mnist_*.deb .` puts them into
`usr/share/datasets/fashion-mnist`. Another version of liblzma may pack the same arrays into other bytes; then SHA256,
which is over the packed file, has to change with them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import sys
from pathlib import Path

import numpy as np

from calibrant.core.files import atomic
from calibrant.data.fashion_mini import FILE, PUBLISHED_TRAIN

TRAIN_PER_CLASS = 1_000
TEST_PER_CLASS = 600
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


def pack(source: Path) -> bytes:
    """The first images of each class of both published parts, ordered by class and id, as one xz stream."""
    images, labels, ids = [], [], []
    for part, first_id, per_class in (
        ("train", 0, TRAIN_PER_CLASS),
        ("t10k", PUBLISHED_TRAIN, TEST_PER_CLASS),
    ):
        published = np.frombuffer(
            gzip.decompress((source / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8
        )
        pictures = np.frombuffer(
            gzip.decompress((source / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
        ).reshape(-1, 28, 28)
        chosen = np.concatenate([np.flatnonzero(published == k)[:per_class] for k in range(10)])
        images.append(pictures[chosen])
        labels.append(published[chosen])
        ids.append((chosen + first_id).astype("<i4"))
    found = [np.concatenate(parts) for parts in (images, labels, ids)]
    order = np.lexsort((found[2], found[1]))
    stream = io.BytesIO()
    for array in found:
        np.save(stream, array[order], allow_pickle=False)
    return lzma.compress(stream.getvalue(), check=lzma.CHECK_CRC64, filters=FILTERS)


def main() -> None:
    """Write the file and say what was written."""
    if len(sys.argv) != 2:
        sys.exit(f"{__doc__}")
    packed = pack(Path(sys.argv[1]))
    with atomic(FILE) as file:
        file.write(packed)
    print(f"wrote {FILE}: {len(packed):,} bytes, SHA-256 {hashlib.sha256(packed).hexdigest()}")


if __name__ == "__main__":
    main()
