"""Tiny-ImageNet as its zip lays it out: 200 classes of JPEG files, and test labels in a table of their own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calibrant.core.errors import InputError
from calibrant.data import TinyImageNet

Pack = Callable[[dict[str, bytes], str], Path]
Noise = Callable[..., np.ndarray]
ROOT = "tiny-imagenet-200"
WNIDS = [f"n{7 * number + 1_000_000:08d}" for number in range(200)]
GREY = 5  # the real set has images without colour among the others


def jpeg(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def decoded(data: bytes) -> np.ndarray:
    """What Pillow makes of it, channels first."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """One training image a class, three test images, and what else the zip has; classes in no order."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (203, 64, 64, 3), dtype=np.uint8)
    found = {f"{ROOT}/wnids.txt": "\n".join(reversed(WNIDS)).encode()}
    for number in rng.permutation(200):
        pixels = pictures[number][..., 0] if number == GREY else pictures[number]
        name = WNIDS[number]
        found[f"{ROOT}/train/{name}/{name}_boxes.txt"] = b"x\t0\t0\t1\t1\n"
        found[f"{ROOT}/train/{name}/images/{name}_0.JPEG"] = jpeg(pixels)
    rows = [(2, 199), (0, 7), (1, 0)]  # test images in the order of the table
    table = "".join(f"val_{image}.JPEG\t{WNIDS[label]}\t0\t32\t44\t62\n" for image, label in rows)
    found[f"{ROOT}/val/val_annotations.txt"] = table.encode()
    for image in range(3):
        found[f"{ROOT}/val/images/val_{image}.JPEG"] = jpeg(pictures[200 + image])
        found[f"{ROOT}/test/images/test_{image}.JPEG"] = jpeg(pictures[image])
    words = [f"{name}\tthing {number}, also this" for number, name in enumerate(WNIDS[:-1])]
    found[f"{ROOT}/words.txt"] = "\n".join(["n99999999\tnothing", *words]).encode()
    return found


@pytest.mark.parametrize("name", ["tiny-imagenet-200.zip", "folder"])
def test_the_published_layout(pack: Pack, files: dict[str, bytes], name: str) -> None:
    stock = TinyImageNet().read(pack(files, name))
    x, y = stock.arrays["x_train"], stock.arrays["y_train"]
    assert x.shape == (200, 3, 64, 64)
    assert y.tolist() == list(range(200))
    for number in (0, GREY, 199):
        data = files[f"{ROOT}/train/{WNIDS[number]}/images/{WNIDS[number]}_0.JPEG"]
        np.testing.assert_array_equal(x[number], decoded(data))
    assert stock.arrays["y_test"].tolist() == [199, 7, 0]
    for row, image in enumerate((2, 0, 1)):
        data = files[f"{ROOT}/val/images/val_{image}.JPEG"]
        np.testing.assert_array_equal(stock.arrays["x_test"][row], decoded(data))
    assert stock.classes[0] == f"{WNIDS[0]} thing 0"
    assert stock.classes[199] == WNIDS[199], "a class without a word keeps its number"


def test_the_layout_without_words(pack: Pack, files: dict[str, bytes]) -> None:
    left = {name: data for name, data in files.items() if not name.endswith("words.txt")}
    assert TinyImageNet().read(pack(left, "x")).classes == tuple(WNIDS)


TABLE = f"{ROOT}/val/val_annotations.txt"
FIRST = f"{ROOT}/train/{WNIDS[0]}/images/{WNIDS[0]}_0.JPEG"


def small() -> bytes:
    return jpeg(np.zeros((63, 64, 3), np.uint8))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (TABLE, b"val_9.JPEG\tn01000000\n", r"line 1 names the image val_9\.JPEG of the class n01000000"),
        (TABLE, b"val_0.JPEG\tn9\n", r"val_annotations\.txt: line 1 names .* one of them is not there"),
        (TABLE, b"val_0.JPEG\n", "line 1 names"),
        (TABLE, b"../../train/x.JPEG\tn01000000\n", "line 1 names"),
        (TABLE, b"", "there are no test images"),
        (FIRST, small(), f"has 64 x 64 pixels and .*{WNIDS[0]}_0.JPEG 64 x 63; all must have one size"),
        (FIRST, b"\xff\xd8\xff\xe0 no image", f"{WNIDS[0]}_0.JPEG is no image that Pillow can read"),
    ],
)
def test_what_is_wrong_is_named(
    pack: Pack, files: dict[str, bytes], name: str, data: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as told:
        TinyImageNet().read(pack(files | {name: data}, "x"))
    assert "\n" not in str(told.value)


def test_another_number_of_classes_is_another_dataset(pack: Pack, files: dict[str, bytes]) -> None:
    left = {name: data for name, data in files.items() if name != FIRST}
    left[TABLE] = f"val_0.JPEG\t{WNIDS[4]}\n".encode()
    with pytest.raises(InputError, match="it has 199 classes, and Tiny-ImageNet has 200"):
        TinyImageNet().read(pack(left, "x"))
