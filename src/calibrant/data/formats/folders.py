"""Images in folders named by their class, decoded by Pillow, which is installed on request."""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.place import Place, show
from calibrant.data.formats.pictures import Part, Pictures
from calibrant.data.tree import MOST_BYTES, Tree

Array = np.ndarray[Any, Any]

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
MOST_PIXELS = 1 << 26
TEST = ("test", "val", "valid", "validation")


def find(files: Tree) -> tuple[str, str] | None:
    """The folders, up to their slash, that hold train and test: test, or validation where there is no test."""
    found: dict[str, str] = {}
    for name in files.ending(*KINDS):
        parts = name.split("/")
        for depth, part in enumerate(parts[:-2]):  # a class and a file come after it
            if part.lower() in ("train", *TEST):
                found.setdefault(part.lower(), "/".join(parts[: depth + 1]) + "/")
                break
    tests = [part for part in TEST if part in found]
    return (found["train"], found[tests[0]]) if "train" in found and tests else None


def read(files: Tree, folders: tuple[str, str], size: int | None = None) -> Pictures:
    """Images of both parts: classes in the order of their names, files of a class in the order of theirs."""
    by_class = [in_classes(files, folder) for folder in folders]
    classes = sorted(by_class[0])
    strange = sorted(set(by_class[1]) - set(classes))
    if strange:
        files.place.refuse(f"{folders[1]} has the class {show(strange[0])}, which {folders[0]} has not")
    parts = []
    for found in by_class:
        rows = [(name, label) for label, each in enumerate(classes) for name in found.get(each, ())]
        images = decode([name for name, _ in rows], files.read, files.place, size)
        parts.append(Part(images, np.array([label for _, label in rows], np.int64)))
    return Pictures(*alike(parts[0], parts[1]), tuple(classes), by_name=True)


def in_classes(files: Tree, folder: str) -> dict[str, list[str]]:
    """The images somewhere below each folder that is right below this one, in the order of their names."""
    found: dict[str, list[str]] = {}
    for name in files.ending(*KINDS):
        inside = name.removeprefix(folder)
        if len(inside) < len(name) and "/" in inside:
            found.setdefault(inside.split("/")[0], []).append(name)
    return found


def alike(train: Part, test: Part) -> tuple[Part, Part]:
    """Both parts in grey, or both in colour."""
    if train.images.shape[1] == test.images.shape[1]:
        return train, test
    grey, colour = sorted((train, test), key=lambda part: part.images.shape[1])
    wide = Part(np.repeat(grey.images, colour.images.shape[1], axis=1), grey.labels)
    return (wide, test) if grey is train else (train, wide)


def decode(
    names: Sequence[str], read_one: Callable[[str], bytes], place: Place, size: int | None = None
) -> Array:
    """uint8 [N, C, H, W]: one channel if every image is grey, three otherwise; all of one size."""
    image = pillow(place)
    images: Array = np.empty((0, 3, 1, 1), np.uint8)
    grey = True
    for row, name in enumerate(names):
        pixels, is_grey = _pixels(image, read_one(name), name, place, size)
        if not row:
            if len(names) * pixels.size > MOST_BYTES:
                place.refuse(
                    f"{len(names):,} images of {pixels.shape[1]} x {pixels.shape[0]} pixels take more than "
                    f"{MOST_BYTES:,} bytes of memory; 'images(path=..., size=64)' makes them smaller"
                )
            images = np.empty((len(names), 3, *pixels.shape[:2]), np.uint8)
        if pixels.shape[:2] != images.shape[2:]:
            (h, w), (first_h, first_w) = pixels.shape[:2], images.shape[2:]
            place.refuse(
                f"{show(name, 100)} has {w} x {h} pixels and {show(names[0], 100)} {first_w} x {first_h}; "
                "all must have one size, and 'images(path=..., size=64)' gives them one"
            )
        images[row] = pixels.transpose(2, 0, 1)
        grey &= is_grey
    return images[:, :1] if grey else images


def pillow(place: Place) -> Any:
    """Pillow's Image module, or the sentence that says how to install it."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        place.refuse("reading image files needs Pillow; pip install 'calibrant[images]'")


def _pixels(image: Any, data: bytes, name: str, place: Place, size: int | None) -> tuple[Array, bool]:
    """One image as [H, W, 3], and whether it is grey."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a large image, which is refused below
            opened = image.open(io.BytesIO(data), formats=FORMATS)
            if opened.width * opened.height > MOST_PIXELS:
                place.refuse(
                    f"{show(name, 100)} has {opened.width} x {opened.height} pixels, more than we read"
                )
            if opened.mode in ("RGBA", "LA", "PA") or "transparency" in opened.info:
                alpha = opened.convert("RGBA").getchannel("A")
                if alpha.getextrema()[0] < 255:
                    place.refuse(f"{show(name, 100)} is transparent in part; lay it on a background first")
            if opened.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"):
                place.refuse(
                    f"{show(name, 100)} has pixels of mode {opened.mode}, not 8 bits a channel; convert it"
                )
            grey = opened.mode in ("1", "L", "LA")
            shown = opened.convert("RGB")
            if size is not None:
                shown = _square(image, shown, size)
            return np.asarray(shown, dtype=np.uint8), grey
    except InputError:
        raise
    except Exception as error:  # whatever bytes can do to a decoder
        place.refuse(f"{show(name, 100)} is no image that Pillow can read ({show(error, 60)})")


def _square(image: Any, shown: Any, size: int) -> Any:
    """The middle square, brought to `size` pixels a side."""
    side = min(shown.size)
    left, top = (shown.width - side) // 2, (shown.height - side) // 2
    return shown.resize((size, size), image.Resampling.BICUBIC, (left, top, left + side, top + side))
