"""Images of one's own: folders by class, a numpy archive, parquet of the hub; each refusal is one sentence."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.samples import Dataset, InputShape
from calibrant.core.spec import build, canonical
from calibrant.data import CIFAR10, SVHN, FashionMNIST, Images, Npz, Parquet
from calibrant.data.formats import folders

Pack = Callable[[dict[str, bytes], str], Path]
Noise = Callable[..., np.ndarray]


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """[C, H, W] as an image file without loss."""
    stream = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(
        stream, kind, **options
    )
    return stream.getvalue()


@pytest.fixture
def pictures(noise: Noise) -> np.ndarray:
    return noise(6, 3, 8, 10)


@pytest.fixture
def tree(pictures: np.ndarray) -> dict[str, bytes]:
    """Two classes; PNG, BMP and lossless WebP; in the order of their names the pictures 0 to 5."""
    return {
        "set/train/cat/b.bmp": encoded(pictures[1], "BMP"),
        "set/train/cat/a.PNG": encoded(pictures[0]),
        "set/train/cat/notes.txt": b"no image",
        "set/train/dog/deep/c.webp": encoded(pictures[2], "WEBP", lossless=True),
        "set/train/dog/d.png": encoded(pictures[3]),
        "set/test/cat/e.png": encoded(pictures[4]),
        "set/test/dog/f.png": encoded(pictures[5]),
        "set/val/dog/g.png": encoded(pictures[0]),
    }


@pytest.mark.parametrize("name", ["pets", "pets.zip", "pets.tar.gz"])
def test_folders_by_class(pack: Pack, tree: dict[str, bytes], pictures: np.ndarray, name: str) -> None:
    path = pack(tree, name)
    dataset = build(f"images(path={json.dumps(str(path))})", "datasets")
    assert isinstance(dataset, Dataset)
    published = dataset.load()
    assert published.name == name
    assert published.classes == ("cat", "dog")
    assert published.shape.size == (3, 8, 10)
    order = [0, 1, 3, 2]  # set/train/dog/d.png comes before set/train/dog/deep/c.webp
    np.testing.assert_array_equal(published.train.inputs.numpy(), pictures[order])
    assert published.train.labels.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(published.test.inputs.numpy(), pictures[4:])
    assert published.test.ids.tolist() == [4, 5]
    assert build(canonical(dataset), "datasets") == dataset


def test_validation_stands_in_where_there_is_no_test(pack: Pack, tree: dict[str, bytes]) -> None:
    left = {name: data for name, data in tree.items() if "/test/" not in name}
    assert Images(str(pack(left, "pets"))).load().test.labels.tolist() == [1]


def test_grey_stays_grey_unless_a_part_has_colour(pack: Pack, noise: Noise) -> None:
    grey = noise(2, 1, 4, 4)
    files = {"train/a/0.png": encoded(grey[0]), "test/a/0.png": encoded(grey[1])}
    published = Images(str(pack(files, "grey"))).load()
    assert published.shape.size == (1, 4, 4)
    np.testing.assert_array_equal(published.train.inputs[0].numpy(), grey[0])
    files["test/a/1.png"] = encoded(noise(1, 3, 4, 4)[0])
    mixed = Images(str(pack(files, "mixed"))).load()
    assert mixed.shape.size == (3, 4, 4)
    np.testing.assert_array_equal(mixed.train.inputs[0].numpy(), np.repeat(grey[0], 3, 0))


def test_size_takes_the_middle_square(pack: Pack) -> None:
    wide = np.zeros((3, 4, 8), np.uint8)
    wide[:, :, 2:6] = 200
    files = {f"{part}/a/0.png": encoded(wide) for part in ("train", "test")}
    files["train/a/1.png"] = encoded(np.full((3, 9, 9), 200, np.uint8))
    published = Images(str(pack(files, "wide")), size=4).load()
    assert (published.train.inputs == 200).all()
    assert published.shape.size == (3, 4, 4)
    with pytest.raises(CalibrantError, match="size is a number of pixels from 1 to 1024, not 0"):
        Images("anywhere", size=0)


def of_mode(mode: str) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (4, 4)).save(stream, "TIFF" if mode == "F" else "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("set/test/bird/x.png", encoded(np.zeros((3, 8, 10), np.uint8)), "has the class bird, which .* has not"),
        ("set/train/cat/a.PNG", encoded(np.zeros((3, 9, 10), np.uint8)), "all must have one size, and 'images"),
        ("set/train/cat/a.PNG", b"\x89PNG no", r"set/train/cat/a\.PNG is no image that Pillow can read"),
        ("set/train/cat/a.PNG", encoded(np.zeros((3, 8, 10), np.uint8))[:45], "is no image that Pillow can read"),
        ("set/train/cat/a.PNG", of_mode("I;16"), "has pixels of mode I;16, not 8 bits a channel"),
        ("set/train/cat/a.tif", of_mode("F"), "has pixels of mode F, not 8 bits a channel"),
        ("set/train/cat/a.PNG", of_mode("RGBA"), "is transparent in part; lay it on a background first"),
        ("set/train/cat/a.PNG", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no image that Pillow"),
    ],
)  # fmt: skip
def test_an_image_that_cannot_be_used_is_named(
    pack: Pack, tree: dict[str, bytes], name: str, data: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as told:
        Images(str(pack(tree | {name: data}, "pets"))).load()
    assert "\n" not in str(told.value)


def test_sizes_are_bounded(pack: Pack, tree: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(pack(tree, "pets"))
    monkeypatch.setattr(folders, "MOST_BYTES", 900)
    with pytest.raises(InputError, match="4 images of 10 x 8 pixels take more than 900 bytes"):
        Images(path).load()
    monkeypatch.setattr(folders, "MOST_PIXELS", 79)
    with pytest.raises(InputError, match="has 10 x 8 pixels, more than we read"):
        Images(path).load()


def test_a_folder_without_classes_says_what_is_wanted(pack: Pack, tmp_path: Path) -> None:
    path = pack({"train/x.png": b"", "a.txt": b""}, "empty")
    with pytest.raises(
        InputError, match=r"there are no images in train/CLASS/ and test/CLASS/ \(or val/CLASS/\)"
    ):
        Images(str(path)).load()
    with pytest.raises(InputError, match="there is no such file"):
        Images(str(tmp_path / "nowhere")).load()


@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (3, 5, 4), (5, 4, 3), (5, 4, 1)])
def test_an_npz_in_every_order(tmp_path: Path, noise: Noise, shape: tuple[int, ...]) -> None:
    x = noise(6, *shape)
    y = np.array([2, 0, 1, 1, 0, 3])
    np.savez(tmp_path / "own.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:], more=y)
    published = Npz(str(tmp_path / "own.npz")).load()
    planes = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) if shape[-1] in (1, 3) else x
    np.testing.assert_array_equal(published.train.inputs.numpy(), planes[:4])
    np.testing.assert_array_equal(published.test.inputs.numpy(), planes[4:])
    assert published.classes == ("0", "1", "2", "3")
    assert published.train.labels.dtype == torch.int64


def test_two_orders_that_are_both_possible_are_refused(tmp_path: Path, noise: Noise) -> None:
    x, y = noise(2, 3, 5, 3), np.zeros(2, int)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match="can be read as two kinds of images"):
        Npz(str(tmp_path / "own.npz")).load()


Parts = dict[str, np.ndarray]


@pytest.fixture
def floats() -> Parts:
    rows = np.random.default_rng(0).normal(size=(6, 5))
    y = np.array([2, 0, 1, 1, 0, 2])
    return {"x_train": rows[:4], "y_train": y[:4], "x_test": rows[4:], "y_test": y[4:]}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
def test_an_npz_of_vectors(tmp_path: Path, floats: Parts, dtype: Any) -> None:
    stored = {name: x.astype(dtype) if name[0] == "x" else x for name, x in floats.items()}
    np.savez(tmp_path / "own.npz", **stored)
    published = Npz(str(tmp_path / "own.npz")).load()
    assert published.shape == InputShape("vector", (5,))
    assert published.classes == ("0", "1", "2")
    for part, name in ((published.train, "train"), (published.test, "test")):
        assert part.inputs.dtype == torch.float32
        np.testing.assert_array_equal(part.inputs.numpy(), stored[f"x_{name}"].astype(np.float32))
        assert part.labels.tolist() == floats[f"y_{name}"].tolist()
    assert published.test.ids.tolist() == [4, 5]


def put(x: np.ndarray, row: int, value: float) -> np.ndarray:
    x = x.copy()
    x[row, 1] = value
    return x


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("x_train", lambda x: x.astype(np.uint8), r"x_train is uint8 of shape \[4, 5\]; images need \[N, H, W\]"),
        ("x_test", lambda x: x.astype(int), r"x_test is int64 of shape \[2, 5\]; .*\[N, D\] a floating dtype"),
        ("x_test", lambda x: x[:, None], r"x_test is float64 of shape \[2, 1, 5\]; images need"),
        ("x_train", lambda x: put(x, 2, np.nan), "train row 2 holds nan, and finite numbers"),
        ("x_test", lambda x: put(x, 1, -np.inf), "test row 1 holds -inf, and finite numbers"),
        ("x_train", lambda x: put(x, 3, 1e39), r"train row 3 holds 1e\+39, and finite numbers of float32"),
        ("x_test", lambda x: x[:, :4], "training vectors have 5 numbers, test vectors 4"),
        ("x_test", lambda x: x[:0], "there are no test vectors"),
        ("y_train", lambda y: y[1:], "there are 4 train vectors and 3 labels; each vector needs one"),
        ("y_test", lambda y: y - 1, "the label of test row 0 is -1"),
        ("y_test", lambda y: y * 1.0, "one integer per vector is wanted"),
    ],
)  # fmt: skip
def test_wrong_vectors_are_one_sentence(
    tmp_path: Path, floats: Parts, name: str, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "own.npz", **{**floats, name: change(floats[name])})
    with pytest.raises(InputError, match=message) as told:
        Npz(str(tmp_path / "own.npz")).load()
    assert "\n" not in str(told.value)


def test_an_image_dataset_takes_no_vectors(tmp_path: Path, floats: Parts) -> None:
    np.savez(tmp_path / "own.npz", **floats)
    with pytest.raises(InputError, match=r"x_train has the shape \[4, 5\]"):
        CIFAR10().read(tmp_path / "own.npz")


def table(
    pictures: np.ndarray, labels: list[Any], names: list[str] | None = None, column: str = "img"
) -> bytes:
    """A parquet file as the library `datasets` writes it."""
    rows = pa.array([{"bytes": encoded(each), "path": None} for each in pictures])
    found = pa.table({column: rows, "label": pa.array(labels)})
    if names is not None:
        features = {column: {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        found = found.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    stream = io.BytesIO()
    pq.write_table(found, stream)
    return stream.getvalue()


TRAIN = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
TEST = "data/test-00000-of-00001.parquet"


def test_parquet_of_the_hub(pack: Pack, noise: Noise) -> None:
    x = noise(6, 3, 32, 32)
    names = ["cat", "dog", "emu"]
    files = {
        TRAIN[1]: table(x[2:4], [2, 1], names),
        TRAIN[0]: table(x[:2], [0, 1], names),
        TEST: table(x[4:], [0, 2], names),
        "README.md": b"#",
    }
    published = Parquet(str(pack(files, "pets"))).load()
    np.testing.assert_array_equal(published.train.inputs.numpy(), x[:4])
    np.testing.assert_array_equal(published.test.inputs.numpy(), x[4:])
    assert published.train.labels.tolist() == [0, 1, 2, 1]
    assert published.classes == ("cat", "dog", "emu")
    own = {name: table(x[:2], [0, 1], column="picture") for name in ("train.parquet", "val.parquet")}
    named = Parquet(str(pack(own, "own")), image="picture", label="label").load()
    assert named.classes == ("0", "1")


def test_published_sets_are_read_from_the_hub_too(pack: Pack, noise: Noise) -> None:
    x = noise(4, 3, 32, 32)
    files = {TRAIN[0]: table(x[:2], [0, 9]), TEST: table(x[2:], [4, 4])}
    stock = SVHN().read(pack(files, "svhn"))
    assert stock.arrays["y_train"].tolist() == [0, 9]
    grey = noise(4, 1, 28, 28)
    spelled = ["T - shirt / top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
               "Ankle boot"]  # fmt: skip
    files = {
        TRAIN[0]: table(grey[:2], [0, 9], spelled, "image"),
        TEST: table(grey[2:], [4, 4], spelled, "image"),
    }
    stock = FashionMNIST().read(pack(files, "fashion"))
    np.testing.assert_array_equal(stock.arrays["x_train"], grey[:2])
    assert stock.arrays["y_train"].tolist() == [0, 9]
    assert stock.classes[0] == "T-shirt/top"


CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def test_labels_follow_the_names_of_the_classes(pack: Pack, noise: Noise) -> None:
    """A file that numbers the same classes otherwise gives the publisher's numbers; other spellings are left alone."""
    x = noise(4, 3, 32, 32)
    for names, expected in (
        (CLASSES, [0, 3]),
        (CLASSES[::-1], [9, 6]),
        ([f"class {n}" for n in range(10)], [0, 3]),
    ):
        files = {TRAIN[0]: table(x[:2], [0, 3], names), TEST: table(x[2:], [1, 1], names)}
        stock = CIFAR10().read(pack(files, names[0]))
        assert stock.arrays["y_train"].tolist() == expected
        assert stock.classes == tuple(CLASSES)
    with pytest.raises(InputError, match="it has 2 classes, and 10 are expected; is it another dataset"):
        CIFAR10().read(pack({TRAIN[0]: table(x, [0] * 4, ["a", "b"]), TEST: table(x, [0] * 4)}, "two"))


def test_folders_are_labelled_by_name_and_every_name_has_to_be_known(pack: Pack, noise: Noise) -> None:
    x = noise(10, 3, 32, 32)
    files = {
        f"{part}/{name.upper()}/0.png": encoded(x[n])
        for n, name in enumerate(CLASSES)
        for part in ("train", "test")
    }
    stock = CIFAR10().read(pack(files, "c"))
    np.testing.assert_array_equal(stock.arrays["x_train"], x)
    assert stock.arrays["y_train"].tolist() == list(range(10))
    renamed = {name.replace("SHIP", "boat"): data for name, data in files.items()}
    with pytest.raises(InputError, match="boat is none of the classes, which are airplane, automobile"):
        CIFAR10().read(pack(renamed, "boats"))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (b"PAR1 no", r"train-00000-of-00002\.parquet: this is no parquet file, or a damaged one"),
        (table(np.zeros((2, 3, 4, 4), np.uint8), [0, 1])[:-30], "this is no parquet file, or a damaged one"),
        (table(np.zeros((1, 3, 4, 4), np.uint8), [0.5]), r"row 0 of the column label is 0\.5"),
        (table(np.zeros((2, 3, 4, 4), np.uint8), [0, None]), "row 1 of the column label is None"),
        (table(np.zeros((2, 3, 4, 4), np.uint8), [0, -1]), "the label of train row 1 is -1"),
        (table(np.zeros((1, 3, 4, 4), np.uint8), [0], column="x"), "no column image or img; it has x, label"),
        (table(np.zeros((1, 3, 5, 4), np.uint8), [0]), "training images are 3 x 5 x 4"),
    ],
)  # fmt: skip
def test_wrong_parquet_is_one_sentence(pack: Pack, train: bytes, message: str) -> None:
    files = {TRAIN[0]: train, TEST: table(np.zeros((1, 3, 4, 4), np.uint8), [0])}
    with pytest.raises(InputError, match=message) as told:
        Parquet(str(pack(files, "p"))).load()
    assert "\n" not in str(told.value)


def test_rows_without_bytes_and_parts_without_names_are_refused(pack: Pack) -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"image": ["a.png"], "label": [0]}), stream)
    with pytest.raises(InputError, match="row 0 of the column image has no bytes"):
        Parquet(str(pack({TRAIN[0]: stream.getvalue(), TEST: stream.getvalue()}, "p"))).load()
    with pytest.raises(InputError, match="there must be train and test: names such as train-00000-of-00001"):
        Parquet(str(pack({"data/part-0.parquet": stream.getvalue()}, "q"))).load()
