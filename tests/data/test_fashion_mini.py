"""The embedded dataset is whole, balanced and what it says it is: rows of Fashion-MNIST under their own numbers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.core.samples import Dataset, Published, Samples
from calibrant.core.spec import build, canonical
from calibrant.data import FashionMini, fashion_mini
from calibrant.data.splits import split


@pytest.fixture(scope="module")
def mini() -> Published:
    return FashionMini().load()


def test_it_is_found_by_name_and_needs_no_directory(tmp_path: Path) -> None:
    found = build("fashion-mini", "datasets")
    assert found == FashionMini()
    assert isinstance(found, Dataset)
    assert canonical(found) == "fashion-mini"
    assert len(found.load(tmp_path / "nowhere").test) == 6_000


@pytest.mark.parametrize(
    ("part", "per_class", "ids"), [("train", 1_000, (0, 60_000)), ("test", 600, (60_000, 70_000))]
)
def test_parts_are_balanced_and_ids_say_where_rows_stand(
    mini: Published, part: str, per_class: int, ids: tuple[int, int]
) -> None:
    samples: Samples = getattr(mini, part)
    assert samples.inputs.dtype == torch.uint8
    assert samples.inputs.shape == (10 * per_class, *mini.shape.size)
    assert torch.bincount(samples.labels).tolist() == [per_class] * len(mini.classes)
    assert (samples.ids.diff() > 0).all()
    assert ids[0] <= int(samples.ids[0])
    assert int(samples.ids[-1]) < ids[1]


def test_rows_are_the_published_ones(mini: Published) -> None:
    """From the published files: the first row of each part, and the hash of all pixels in the order of ids.

    Made with numpy from Debian's dataset-fashion-mnist 0.0~git20200523, without our code.
    """
    assert (mini.train.ids[:3].tolist(), mini.train.labels[:3].tolist()) == ([0, 1, 2], [9, 0, 0])
    assert (mini.test.ids[:3].tolist(), mini.test.labels[:3].tolist()) == (
        [60_000, 60_001, 60_002],
        [9, 2, 1],
    )
    pixels = torch.cat([mini.train.inputs, mini.test.inputs]).numpy().tobytes()
    assert (
        hashlib.sha256(pixels).hexdigest()
        == "5c86e67bf8c021b3f323d2e4ea254dcec2ce080cc71f42cb485a8593bd26af46"
    )


def test_it_is_small_enough_to_travel_and_its_licence_travels_with_it() -> None:
    assert fashion_mini.FILE.stat().st_size <= 6_000_000
    licence = fashion_mini.FILE.with_name("LICENSE").read_text(encoding="utf-8")
    assert "The MIT License (MIT) Copyright © [2017] Zalando SE" in licence
    assert "WITHOUT WARRANTY OF ANY KIND" in licence


def test_every_part_of_a_split_has_every_class(mini: Published) -> None:
    parts = split(mini)
    assert [len(p) for p in (parts.train, parts.val, parts.meta, parts.test)] == [8_000, 1_000, 1_000, 6_000]
    for part in (parts.train, parts.val, parts.meta):
        assert int(torch.bincount(part.labels, minlength=10).min()) > 0


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    packed = bytearray(fashion_mini.FILE.read_bytes())
    packed[4_000_000] ^= 1
    damaged = tmp_path / "samples.npy.xz"
    damaged.write_bytes(packed)
    with pytest.raises(InputError, match=r"samples\.npy\.xz: the file was changed or damaged"):
        fashion_mini.arrays(damaged)
