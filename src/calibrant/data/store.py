"""The data directory: one file a dataset, `NAME.npz`, that plain numpy reads and we map into memory.

Each file carries a SHA-256 over its arrays and its meta, which is checked whenever the arrays are loaded.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.core import npz
from calibrant.core.content import Content, digest, pack, unpack, verify
from calibrant.core.errors import InputError
from calibrant.core.place import Place
from calibrant.core.samples import Stock


@dataclass(frozen=True)
class Kept:
    """What is known of a kept dataset without reading its arrays."""

    path: Path
    source: str
    classes: tuple[str, ...]
    train: int
    test: int
    sha256: str

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return self.path.stat().st_size


def directory(data_dir: Path | None = None) -> Path:
    """What was given, or CALIBRANT_DATA, or `calibrant` in XDG_DATA_HOME, or ~/.local/share/calibrant."""
    if data_dir is not None:
        return data_dir
    own = os.environ.get("CALIBRANT_DATA", "")
    if own:
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".local" / "share") / "calibrant"


def file_of(name: str, data_dir: Path | None = None) -> Path:
    """Where a dataset is kept, whether it is there or not."""
    return directory(data_dir) / f"{name}.npz"


def keep(name: str, stock: Stock, source: str, data_dir: Path | None = None) -> Kept:
    """Write a dataset into the data directory, which is made if need be.

    `source` is noted beside it, and not part of its hash: the same data from two sources have one hash.
    """
    path = file_of(name, data_dir)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        Place(str(path.parent)).refuse(f"cannot make the data directory: {error.strerror or error}")
    meta = {
        "dataset": name,
        "classes": list(stock.classes),
        "rows": {"train": len(stock.arrays["y_train"]), "test": len(stock.arrays["y_test"])},
    }
    arrays = dict(stock.arrays)
    npz.write(path, arrays, pack(meta, digest(arrays, meta), kind="dataset", source=source))
    return _kept(name, path, {})[0]


def look(name: str, data_dir: Path | None = None) -> Kept | None:
    """What is known of a dataset that is kept; None if it is not there."""
    path = file_of(name, data_dir)
    return _kept(name, path, {})[0] if path.exists() else None


def load(name: str, data_dir: Path | None = None) -> Stock:
    """A dataset that is kept, its large arrays mapped into memory, after its hash was found right."""
    path = file_of(name, data_dir)
    if not path.exists():
        option = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
        raise InputError(
            f"{name} is not in {path.parent}; get it with 'calibrant data fetch {name}{option}', "
            f"or convert a copy with 'calibrant data import {name} FROM{option}'"
        )
    kept, content = _kept(name, path, None)
    sha256 = digest(content.arrays, content.meta)
    verify(sha256, content, Place(str(path)))
    return Stock(content.arrays, kept.classes)


def _kept(name: str, path: Path, wanted: Mapping[str, str] | None) -> tuple[Kept, Content]:
    """The description of a file with some of its arrays, or with all of them if `wanted` is None."""
    place = Place(str(path))

    def choice(found: list[str]) -> Mapping[str, str]:
        return {each: each for each in found if each != "meta"} if wanted is None else wanted

    arrays, text = npz.members(path, place, choice)
    meta, entry = unpack(text, place) if text is not None else ({}, None)
    if entry is None or entry.get("kind") != "dataset" or meta.get("dataset") != name:
        place.refuse(f"this is not {name} as Calibrant keeps it; convert it with 'calibrant data import'")
    try:
        rows: dict[str, Any] = meta["rows"]
        kept = Kept(
            path=path,
            source=str(entry["source"]),
            classes=tuple(map(str, meta["classes"])),
            train=int(rows["train"]),
            test=int(rows["test"]),
            sha256=str(entry["sha256"]),
        )
    except (KeyError, TypeError, ValueError):
        place.refuse(
            "the file was changed or damaged, because its meta is incomplete; import the dataset again"
        )
    return kept, Content(arrays, meta, entry)
