"""Data of one's own, read where they lie, each time anew: images by class, a numpy archive, parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calibrant.core.errors import SpecError
from calibrant.core.place import Place
from calibrant.core.registry import register
from calibrant.core.samples import Published
from calibrant.data.formats import arrays, folders, hugging_face, vectors
from calibrant.data.formats.pictures import published, stock
from calibrant.data.tree import tree


@register("datasets", "images")
@dataclass(frozen=True)
class Images:
    """Image files of your own in `train/CLASS/` and `test/CLASS/` below `path`, a folder, a zip or a tar.

    Where there is no `test`, `val` or `valid` is the test set. Classes are in the order of their names, images of a
    class in the order of theirs; an id is the row in that order, so it changes when files are added. Grey if all images
    are, in colour otherwise. All must have one size; with `size` the middle square of each is brought to that many
    pixels. `mirrored=False` says that a mirrored image would be another class (digits, letters, left and right). It is
    read and decoded at each start: for many images, an npz is quicker.
    """

    path: str
    size: int | None = None
    mirrored: bool = True

    def __post_init__(self) -> None:
        checked_size(self.size)

    def load(self, data_dir: Path | None = None) -> Published:
        """The decoded images; `data_dir` is not looked at."""
        source = Path(self.path).expanduser()
        with tree(source) as files:
            parts = folders.find(files)
            if parts is None:
                files.place.refuse(
                    "there are no images in train/CLASS/ and test/CLASS/ (or val/CLASS/), which are wanted"
                )
            found = folders.read(files, parts, self.size)
        return published(source.name, stock(found, Place(str(source))))


@register("datasets", "npz")
@dataclass(frozen=True)
class Npz:
    """Images or vectors of your own in one numpy archive: `x_train`, `y_train`, `x_test`, `y_test`.

    Images are uint8, 0 to 255, of shape [N, H, W], [N, H, W, C] or [N, C, H, W] with 1 or 3 channels; vectors are
    finite floats of shape [N, D], kept as float32 and not scaled. `y` holds integers from 0. An id is the row in the
    file, test rows counted on from the size of train. Written without compression (`numpy.savez`) and images with the
    channels first, large arrays are mapped and not read. `mirrored=False` says that a mirrored image would be another
    class; vectors never are mirrored.
    """

    path: str
    mirrored: bool = True

    def load(self, data_dir: Path | None = None) -> Published:
        """The images or vectors of the file; `data_dir` is not looked at."""
        source = Path(self.path).expanduser()
        place = Place(str(source))
        found = arrays.held(source, place)
        if found["x_train"].ndim == 2:
            return published(source.stem, vectors.stock(found, place))
        return published(source.stem, stock(arrays.pictures(found, place), place))


@register("datasets", "parquet")
@dataclass(frozen=True)
class Parquet:
    """Images of your own, or from the Hugging Face hub, in parquet files below `path`: `train-*` and `test-*`.

    Where there is no `test`, `val`, `valid` or `validation` is the test set. A row has an image, {bytes, path} with the
    bytes of an image file, in the column `image` or `img`, and a whole number in `label`, `labels` or `fine_label`;
    `image` and `label` name other columns. An id is the row, files in the order of their names, test rows counted on
    from the size of train. `size` and `mirrored` are those of `images`. It needs pyarrow and Pillow.
    """

    path: str
    image: str = ""
    label: str = ""
    size: int | None = None
    mirrored: bool = True

    def __post_init__(self) -> None:
        checked_size(self.size)

    def load(self, data_dir: Path | None = None) -> Published:
        """The decoded images; `data_dir` is not looked at."""
        source = Path(self.path).expanduser()
        with tree(source) as files:
            found = hugging_face.read(files, self.size, self.image, self.label)
        return published(source.name, stock(found, Place(str(source))))


def checked_size(size: int | None) -> None:
    """Refuse what is no size of an image."""
    if size is not None and not 1 <= size <= 1024:
        raise SpecError(f"size is a number of pixels from 1 to 1024, not {size}")
