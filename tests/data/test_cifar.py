"""CIFAR in every form in which people have it: each gives the same rows, and each defect is one sentence."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.core.samples import Importable, Stock
from calibrant.data import CIFAR10, CIFAR100, store

Pack = Callable[[dict[str, bytes], str], Path]
Noise = Callable[..., np.ndarray]
Files = dict[str, bytes]
ROWS = 4  # of each batch


def python2(value: Any) -> bytes:
    """A pickle as cPickle of Python 2 wrote it, protocol 2: texts are byte strings, arrays carry theirs as one."""
    return b"\x80\x02" + written(value) + b"."


def written(value: Any) -> bytes:
    match value:
        case bytes():
            return b"T" + struct.pack("<I", len(value)) + value
        case bool():
            return b"\x88" if value else b"\x89"
        case None:
            return b"N"
        case int():
            return b"J" + struct.pack("<i", value)
        case list():
            return b"](" + b"".join(map(written, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(written, value)) + b"t"
        case dict():
            return b"}(" + b"".join(written(k) + written(v) for k, v in value.items()) + b"u"
        case np.ndarray():
            kind = b"cnumpy\ndtype\n" + written((b"u1", 0, 1)) + b"R"
            kind += written((3, b"|", None, None, None, -1, -1, 0)) + b"b"
            made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + written((0,)) + b"U\x01btR"
            return made + b"(K\x01" + written(value.shape) + kind + b"\x89" + written(value.tobytes()) + b"tb"
    raise TypeError(type(value))


def modern(protocol: int, text: bool) -> Callable[[dict[bytes, Any]], bytes]:
    """A pickle of today's Python, with keys of text or bytes."""
    return lambda batch: pickle.dumps({k.decode() if text else k: v for k, v in batch.items()}, protocol)


@pytest.fixture
def rows(noise: Noise) -> tuple[np.ndarray, np.ndarray]:
    """Images of five training batches and a test batch, one after the other, and their labels."""
    return noise(6 * ROWS, 3, 32, 32), np.arange(6 * ROWS) % 10


def batches(rows: tuple[np.ndarray, np.ndarray], dump: Callable[[dict[bytes, Any]], bytes]) -> Files:
    x, y = rows
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = {"cifar-10-batches-py/batches.meta": dump({b"label_names": [b"airplane"]})}
    for i, name in enumerate(names):
        part = slice(i * ROWS, (i + 1) * ROWS)
        batch = {
            b"batch_label": b"batch",
            b"labels": y[part].tolist(),
            b"data": x[part].reshape(ROWS, -1),
            b"filenames": [b"a.png"] * ROWS,
        }
        files[f"cifar-10-batches-py/{name}"] = dump(batch)
    return files


def records(rows: tuple[np.ndarray, np.ndarray]) -> Files:
    x, y = rows
    raw = np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], 1).reshape(6, -1)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    return {f"cifar-10-batches-bin/{name}": part.tobytes() for name, part in zip(names, raw, strict=True)} | {
        "cifar-10-batches-bin/readme.html": b"<p>"
    }


def assert_holds(stock: Stock, rows: tuple[np.ndarray, np.ndarray], train: int) -> None:
    x, y = rows
    np.testing.assert_array_equal(stock.arrays["x_train"], x[:train])
    np.testing.assert_array_equal(stock.arrays["x_test"], x[train:])
    np.testing.assert_array_equal(stock.arrays["y_train"], y[:train])
    np.testing.assert_array_equal(stock.arrays["y_test"], y[train:])
    assert stock.arrays["x_train"].dtype == np.uint8
    assert stock.arrays["y_train"].dtype == np.int64


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar.tar", "cifar.zip", "folder"])
@pytest.mark.parametrize(
    "dump", [python2, modern(2, False), modern(4, True), None], ids=["python2", "2", "4", "binary"]
)
def test_cifar10_in_every_form(
    pack: Pack,
    rows: tuple[np.ndarray, np.ndarray],
    name: str,
    dump: Callable[[dict[bytes, Any]], bytes] | None,
) -> None:
    path = pack(records(rows) if dump is None else batches(rows, dump), name)
    stock = CIFAR10().read(path)
    assert_holds(stock, rows, 5 * ROWS)
    assert stock.classes[:2] == ("airplane", "automobile")


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar100_has_fine_labels(pack: Pack, noise: Noise, form: str) -> None:
    x, fine, coarse = noise(10, 3, 32, 32), np.arange(90, 100), np.arange(10)
    files = {}
    for name, part in (("train", slice(6)), ("test", slice(6, 10))):
        if form == "python":
            batch = {
                b"filenames": [b"a.png"],
                b"batch_label": b"batch",
                b"fine_labels": fine[part].tolist(),
                b"coarse_labels": coarse[part].tolist(),
                b"data": x[part].reshape(-1, 3072),
            }
            files[f"cifar-100-python/{name}"] = python2(batch)
        else:
            raw = np.concatenate([np.stack([coarse, fine], 1).astype(np.uint8), x.reshape(10, -1)], 1)
            files[f"cifar-100-binary/{name}.bin"] = raw[part].tobytes()
    stock = CIFAR100().read(pack(files, "cifar-100.tar.gz"))
    assert_holds(stock, (x, fine), 6)
    assert len(set(stock.classes)) == 100
    assert stock.classes[99] == "worm"


@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize("column", [False, True])
def test_an_npz_of_either_order(
    tmp_path: Path, rows: tuple[np.ndarray, np.ndarray], order: str, column: bool
) -> None:
    """Labels in a column are what Keras gives."""
    x, y = rows
    x = x.transpose(0, 2, 3, 1) if order == "NHWC" else x
    y = y[:, None].astype(np.uint8) if column else y
    np.savez(tmp_path / "c.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    assert_holds(CIFAR10().read(tmp_path / "c.npz"), rows, 20)


def test_what_is_kept_is_what_is_loaded(
    pack: Pack, tmp_path: Path, rows: tuple[np.ndarray, np.ndarray]
) -> None:
    assert isinstance(CIFAR10(), Importable)
    kept = store.keep("cifar10", CIFAR10().read(pack(records(rows), "c.tar")), "c.tar", tmp_path)
    again = store.keep("cifar10", CIFAR10().read(pack(batches(rows, python2), "c")), "c", tmp_path)
    assert (kept.train, kept.test, kept.source, again.source) == (20, 4, "c.tar", "c")
    assert kept.sha256 == again.sha256, "the same rows from two sources have one hash"
    published = CIFAR10().load(tmp_path)
    assert published.name == "cifar10"
    assert published.shape.size == (3, 32, 32)
    assert torch.equal(published.test.inputs, torch.from_numpy(rows[0][20:]))
    assert published.train.ids.tolist() == list(range(20))
    assert published.test.ids.tolist() == [20, 21, 22, 23]
    with np.load(kept.path) as plain:  # anyone can read it
        np.testing.assert_array_equal(plain["x_train"], rows[0][:20])


def damaged(files: Files, name: str, change: Callable[[dict[Any, Any]], object]) -> Files:
    """The same files, with one pickled batch changed."""
    path = f"cifar-10-batches-py/{name}"
    batch = pickle.load(io.BytesIO(files[path]))  # noqa: TID251, S301 (written by this test)
    change(batch)
    return files | {path: pickle.dumps(batch, 2)}


WRONG: dict[str, tuple[Callable[[dict[Any, Any]], object], str]] = {
    "a label less": (lambda b: b["labels"].pop(), "it has 4 images and 3 labels; get it again"),
    "labels beyond": (lambda b: b["labels"].__setitem__(2, 10), "the label of train row 6 is 10.*0 to 9"),
    "labels below": (lambda b: b["labels"].__setitem__(0, -1), "labels are not all from 0 to 255"),
    "labels of text": (lambda b: b["labels"].__setitem__(0, "1"), "labels are no list of whole numbers"),
    "labels of truth": (lambda b: b["labels"].__setitem__(0, True), "labels are no list of whole numbers"),
    "no labels": (lambda b: b.pop("labels"), "the pickle has no 'labels'"),
    "the other CIFAR": (lambda b: b.update(fine_labels=b.pop("labels")), "no 'labels'; is it the other CIFAR"),
    "no data": (lambda b: b.pop("data"), "the pickle has no 'data'"),
    "float data": (lambda b: b.update(data=b["data"].astype(float)), "data are no uint8 array of 3,072 columns"),
    "narrow data": (lambda b: b.update(data=b["data"][:, 1:]), "data are no uint8 array of 3,072 columns"),
    "data as a list": (lambda b: b.update(data=[1, 2]), "data are no uint8 array of 3,072 columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_batch_is_named(pack: Pack, rows: tuple[np.ndarray, np.ndarray], name: str) -> None:
    change, message = WRONG[name]
    path = pack(damaged(batches(rows, modern(2, True)), "data_batch_2", change), "c.tar.gz")
    with pytest.raises(InputError, match=message) as told:
        CIFAR10().read(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)
    assert "data_batch_2" in str(told.value) or "train row" in str(told.value)


def test_a_missing_batch_is_named(pack: Pack, rows: tuple[np.ndarray, np.ndarray]) -> None:
    for files, name in ((batches(rows, python2), "data_batch_3"), (records(rows), "test_batch.bin")):
        left = {path: data for path, data in files.items() if not path.endswith(f"/{name}")}
        with pytest.raises(InputError, match=f"{name} is missing in it; get it again"):
            CIFAR10().read(pack(left, f"{name}.tar.gz"))


def test_cut_files_are_one_sentence(pack: Pack, rows: tuple[np.ndarray, np.ndarray]) -> None:
    binary, pickled = records(rows), batches(rows, python2)
    cut = binary | {"cifar-10-batches-bin/data_batch_4.bin": b"x" * 3072}
    with pytest.raises(InputError, match=r"data_batch_4\.bin: it has 3,072 bytes, no multiple of 3,073"):
        CIFAR10().read(pack(cut, "a.tar"))
    cut = pickled | {"cifar-10-batches-py/test_batch": pickled["cifar-10-batches-py/test_batch"][:-9]}
    with pytest.raises(InputError, match="test_batch: the pickle is damaged"):
        CIFAR10().read(pack(cut, "b.tar"))
    path = pack(pickled, "c.tar.gz")
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(InputError, match="archive is cut short or damaged"):
        CIFAR10().read(path)
    path.write_bytes(gzip.compress(b"no tar at all" * 100))
    with pytest.raises(InputError, match=r"c\.tar\.gz: "):
        CIFAR10().read(path)


def test_what_is_something_else_says_what_is_wanted(
    pack: Pack, tmp_path: Path, rows: tuple[np.ndarray, np.ndarray]
) -> None:
    wanted = "here is neither the files train and test, or train.bin and test.bin, nor an npz with x_train"
    with pytest.raises(InputError, match=wanted):
        CIFAR100().read(pack(batches(rows, python2), "c.tar.gz"))
    with pytest.raises(InputError, match="there is no such file"):
        CIFAR10().read(tmp_path / "absent.tar.gz")
    with pytest.raises(
        InputError, match="it holds a/data_batch_1 and b/data_batch_1; name the folder of one"
    ):
        CIFAR10().read(pack({"a/data_batch_1": b"x", "b/data_batch_1": b"x"}, "two"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": np.zeros((2, 28, 28), np.uint8)}, "train images are 1 x 28 x 28 .*, not 3 x 32 x 32"),
        ({"x_train": np.zeros((2, 32, 32, 1), np.uint8)}, "no side of 3 for the channels is first or last"),
        ({"x_train": np.zeros((2, 3, 32, 32))}, "train images are float64"),
        ({"x_train": np.zeros((2, 3072), np.uint8)}, r"x_train has the shape \[2, 3072\]"),
        ({"x_train": np.zeros((3, 3, 32, 32), np.uint8)}, "there are 3 train images and 2 labels"),
        ({"y_train": np.zeros(2)}, "the train labels are float64"),
        ({"y_train": np.array([0, 10])}, "the label of train row 1 is 10, and there are classes 0 to 9"),
        ({"y_test": np.array([0, -1])}, "the label of test row 1 is -1"),
        ({"y_test": np.zeros((2, 10), int)}, "the test labels are int64"),
        ({"x_test": np.zeros((0, 3, 32, 32), np.uint8), "y_test": np.zeros(0, int)}, "no test images"),
        ({"y_test": np.array([object(), object()])}, r"y_test\.npy holds Python objects, which are never"),
        ({"x_test": None}, "there is no x_test; x_train, y_train, x_test, y_test are wanted"),
    ],
)  # fmt: skip
def test_wrong_arrays_are_one_sentence(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    good = {f"x_{part}": np.zeros((2, 3, 32, 32), np.uint8) for part in ("train", "test")}
    good |= {f"y_{part}": np.zeros(2, int) for part in ("train", "test")}
    given = {name: each for name, each in {**good, **arrays}.items() if each is not None}
    np.savez(tmp_path / "c.npz", **given)
    with pytest.raises(InputError, match=message) as told:
        CIFAR10().read(tmp_path / "c.npz")
    assert str(tmp_path / "c.npz") in str(told.value)
    assert "\n" not in str(told.value)
