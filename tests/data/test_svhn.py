"""SVHN's Matlab files: the order of their sides, the digit 0 that is called 10, and what is refused of them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from calibrant.core.errors import InputError
from calibrant.data import SVHN, svhn

Pack = Callable[[dict[str, bytes], str], Path]
Noise = Callable[..., np.ndarray]


def mat(compress: bool = True, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    savemat(stream, arrays, do_compression=compress)
    return stream.getvalue()


def as_published(images: np.ndarray, labels: np.ndarray, compress: bool = True) -> bytes:
    """[N, 3, 32, 32] and digits as X [32, 32, 3, N] and y [N, 1], 10 for 0."""
    y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    return mat(compress, X=images.transpose(2, 3, 1, 0), y=y)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("name", ["folder", "svhn.zip"])
def test_both_files_are_read(pack: Pack, noise: Noise, compress: bool, name: str) -> None:
    x, y = noise(12, 3, 32, 32), np.arange(12) % 10
    files = {
        "train_32x32.mat": as_published(x[:8], y[:8], compress),
        "test_32x32.mat": as_published(x[8:], y[8:], compress),
    }
    stock = SVHN().read(pack(files, name))
    np.testing.assert_array_equal(stock.arrays["x_train"], x[:8])
    np.testing.assert_array_equal(stock.arrays["x_test"], x[8:])
    assert stock.arrays["y_train"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert stock.arrays["y_test"].tolist() == [8, 9, 0, 1]
    assert stock.classes == tuple("0123456789")
    assert stock.arrays["x_train"].flags.c_contiguous


X = np.zeros((32, 32, 3, 2), np.uint8)
Y = np.ones((2, 1), np.uint8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (mat(X=X, y=np.full((2, 1), 11)), "its y are not all from 1 to 10; get it again"),
        (mat(X=X, y=np.full((2, 1), -1)), "its y are not all from 1 to 10; get it again"),
        (mat(X=X, y=np.full((2, 1), 1.5)), "its y are no whole numbers"),
        (mat(X=X, y=np.full((2, 1), np.nan)), "its y are no whole numbers"),
        (mat(X=X, y="ab"), "its y are no whole numbers"),
        (mat(X=X, y=np.ones((3, 1))), "there are 2 train images and 3 labels"),
        (mat(X=X.astype(float), y=Y), r"its X is float64 of shape \[32, 32, 3, 2\]"),
        (mat(X=X[..., 0], y=Y), r"its X is uint8 of shape \[32, 32, 3\]"),
        (mat(X=X.transpose(3, 0, 1, 2), y=Y), "the train images are .*, not 3 x 32 x 32"),
        (mat(images=X, y=Y), "there are no X and y in it, but images, y"),
        (b"\x89HDF\r\n\x1a\n" + bytes(600), "this is no Matlab file of version 5"),
        (b"", "this is no Matlab file of version 5"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(pack: Pack, data: bytes, message: str) -> None:
    path = pack({"train_32x32.mat": data, "test_32x32.mat": mat(X=X, y=Y)}, "svhn")
    with pytest.raises(InputError, match=message) as told:
        SVHN().read(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("compress", [True, False])
def test_a_file_that_is_cut_anywhere_is_refused(pack: Pack, noise: Noise, compress: bool) -> None:
    whole = as_published(noise(4, 3, 32, 32), np.arange(4), compress)
    for keep in (1, 100, 130, 140, len(whole) // 2, len(whole) - 60, len(whole) - 8):
        path = pack({"train_32x32.mat": whole[:keep], "test_32x32.mat": whole}, f"svhn-{keep}")
        with pytest.raises(InputError, match=r"train_32x32\.mat: ") as told:
            SVHN().read(path)
        assert "\n" not in str(told.value)


def test_one_file_is_not_enough(pack: Pack) -> None:
    path = pack({"train_32x32.mat": mat(X=X, y=Y)}, "svhn")
    for source in (path, path / "train_32x32.mat"):
        with pytest.raises(
            InputError, match=r"one of train_32x32\.mat and test_32x32\.mat is missing; import"
        ):
            SVHN().read(source)


def test_sizes_are_looked_at_before_anything_is_unpacked(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    data = mat(X=np.zeros((32, 32, 3, 200), np.uint8), y=np.ones((200, 1)))
    assert len(data) < 5_000
    monkeypatch.setattr(svhn, "MOST_BYTES", 100_000)
    with pytest.raises(InputError, match="its X and y are larger than any SVHN; it is refused"):
        SVHN().read(pack({"train_32x32.mat": data, "test_32x32.mat": data}, "svhn"))
