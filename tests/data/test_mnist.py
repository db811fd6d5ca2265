"""The idx files of MNIST and Fashion-MNIST: packed or not, dotted or not; and every way in which one can be broken."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.data import MNIST, FashionMini, FashionMNIST
from calibrant.data.formats import idx

Pack = Callable[[dict[str, bytes], str], Path]
Noise = Callable[..., np.ndarray]
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
X, Y, X_TEST, Y_TEST = NAMES


def packed(array: np.ndarray) -> bytes:
    """An array of bytes as idx: magic number 8 for their type and the number of sides, the sides, the bytes."""
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def arrays(noise: Noise) -> list[np.ndarray]:
    y = (np.arange(12) % 10).astype(np.uint8)
    return [noise(8, 28, 28), y[:8], noise(4, 28, 28, seed=1), y[8:]]


@pytest.fixture
def files(arrays: list[np.ndarray]) -> dict[str, bytes]:
    return {name: packed(array) for name, array in zip(NAMES, arrays, strict=True)}


@pytest.mark.parametrize("form", ["plain", "gz", "dotted", "in a folder of a zip"])
@pytest.mark.parametrize("dataset", [MNIST(), FashionMNIST()], ids=["mnist", "fashion-mnist"])
def test_four_files_in_every_form(
    pack: Pack, files: dict[str, bytes], arrays: list[np.ndarray], dataset: MNIST | FashionMNIST, form: str
) -> None:
    if form == "gz":
        files = {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
    if form == "dotted":
        files = {name.replace("-idx", ".idx"): data for name, data in files.items()}
    if form == "in a folder of a zip":
        files = {f"raw/{name}": data for name, data in files.items()}
    stock = dataset.read(pack(files, "m.zip" if "zip" in form else "m"))
    np.testing.assert_array_equal(stock.arrays["x_train"], arrays[0][:, None])
    np.testing.assert_array_equal(stock.arrays["y_train"], arrays[1])
    np.testing.assert_array_equal(stock.arrays["x_test"], arrays[2][:, None])
    np.testing.assert_array_equal(stock.arrays["y_test"], arrays[3])
    assert len(stock.classes) == 10


def test_fashion_mnist_has_the_classes_of_the_embedded_subset(pack: Pack, files: dict[str, bytes]) -> None:
    assert FashionMNIST().read(pack(files, "m")).classes == FashionMini().load().classes


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (X, lambda b: b[:-1], rf"{X}: it has 6,271 bytes of data, and its header says 6,272; get it again"),
        (X, lambda b: b + b"x", r"it has 6,273 bytes of data, and its header says 6,272"),
        (X, lambda b: b[:10], rf"{X}: this is no idx file of bytes in 3 dimensions"),
        (X, lambda b: b"\0\0\x0d\3" + b[4:], r"it begins with 00000d03"),
        (Y, lambda b: packed(np.zeros((8, 1), np.uint8)), rf"{Y}: this is no idx file of bytes in 1 dim"),
        (X, lambda b: b[:4] + b"\xff" * 12 + b[16:], r"its header says 79,228,162,458,924,105,385,300,197,375"),
        (Y, lambda b: packed(np.zeros(7, np.uint8)), "there are 8 train images and 7 labels"),
        (Y_TEST, lambda b: packed(np.full(4, 10, np.uint8)), "the label of test row 0 is 10.*0 to 9"),
        (X_TEST, lambda b: packed(np.zeros((4, 27, 28), np.uint8)), "test images are 1 x 27 x 28"),
        (X_TEST, None, f"{X_TEST} is missing; import the folder that has all four files"),
        (X_TEST, lambda b: b"", f"{X_TEST}: this is no idx file"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(
    pack: Pack, files: dict[str, bytes], name: str, change: Callable[[bytes], bytes] | None, message: str
) -> None:
    changed = dict(files)
    changed[name] = b"" if change is None else change(files[name])
    if change is None:
        del changed[name]
    with pytest.raises(InputError, match=message) as told:
        MNIST().read(pack(changed, "m"))
    assert "\n" not in str(told.value)


def test_a_gz_that_is_cut_or_too_large_is_refused(
    pack: Pack, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = {f"{name}.gz": gzip.compress(data) for name, data in files.items()}
    cut = {name: data[:-20] if name.startswith(X) else data for name, data in zipped.items()}
    with pytest.raises(InputError, match=rf"{X}\.gz: the gz file is cut short or damaged"):
        MNIST().read(pack(cut, "cut"))
    monkeypatch.setattr(idx, "MOST_BYTES", 1_000)
    with pytest.raises(InputError, match=rf"{X}\.gz: it unpacks to more than 1,000 bytes"):
        MNIST().read(pack(zipped, "large"))


def test_one_file_alone_asks_for_the_folder(pack: Pack, files: dict[str, bytes]) -> None:
    with pytest.raises(InputError, match="is missing; import the folder that has all four files"):
        MNIST().read(pack(files, "m") / X)
