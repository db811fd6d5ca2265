"""What there is, what is in the data directory, and how it gets there: fetched from its publisher, or imported."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from calibrant.core.errors import InputError, SpecError
from calibrant.core.place import Place
from calibrant.core.registry import describe, lookup, parameters
from calibrant.core.samples import Download, Importable
from calibrant.data import store
from calibrant.data.download import Report, Unreachable, download

State = Literal["kept", "absent", "damaged", "ready", "own"]


@dataclass(frozen=True)
class Item:
    """A dataset by name: `kept` in the data directory, `absent` or `damaged` there, `ready` without a file, or of `own`
    files, which a parameter names."""

    name: str
    summary: str
    state: State
    downloads: tuple[Download, ...] = ()
    kept: store.Kept | None = None


def items(data_dir: Path | None = None) -> list[Item]:
    """Every registered dataset, in name order."""
    return [item(entry.name, data_dir) for entry in describe("datasets")]


def item(name: str, data_dir: Path | None = None) -> Item:
    """One dataset, and what is there of it."""
    entry = next(entry for entry in describe("datasets") if entry.name == name)
    if any(parameter.required for parameter in entry.parameters):
        return Item(name, entry.summary, "own")
    piece = entry.piece()
    if not isinstance(piece, Importable):
        return Item(name, entry.summary, "ready")
    try:
        kept = store.look(name, data_dir)
    except InputError:
        return Item(name, entry.summary, "damaged", tuple(piece.downloads))
    return Item(name, entry.summary, "absent" if kept is None else "kept", tuple(piece.downloads), kept)


def importable(name: str) -> Importable:
    """The dataset of that name, if it is one that is kept in the data directory."""
    piece = lookup("datasets", name)
    if any(parameter.required for parameter in parameters(piece)):
        raise SpecError(f"{name} reads your own files where they lie: write {name}(path=...) as the dataset")
    made = piece()
    if not isinstance(made, Importable):
        known = ", ".join(item.name for item in items() if item.downloads)
        raise SpecError(f"{name} needs no files; those that can be fetched or imported are {known}")
    return made


def fetch(name: str, data_dir: Path | None, progress: Callable[[Download], Report]) -> store.Kept:
    """Download what is published, convert it, and delete what was downloaded; nothing is done if it is kept already.

    `progress` is called with each file before it is downloaded, and gives what is told of its bytes.
    """
    piece = importable(name)
    kept = there(name, data_dir)
    if kept is not None:
        return kept
    folder = store.directory(data_dir) / "downloads" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        Place(str(folder)).refuse(f"cannot make this directory: {error.strerror or error}")
    try:
        files = [download(item, folder, progress(item)) for item in piece.downloads]
    except Unreachable as error:
        raise InputError(f"{error}; run this again to go on, or {by_hand(name, piece, data_dir)}") from None
    kept = store.keep(name, piece.read(files[0] if len(files) == 1 else folder), "fetched", data_dir)
    for file in files:
        file.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
    return kept


def there(name: str, data_dir: Path | None) -> store.Kept | None:
    """What is kept of a dataset; a damaged file is not replaced before it is deleted by whoever knows what it was."""
    try:
        return store.look(name, data_dir)
    except InputError as error:
        raise InputError(f"{error} (to fetch it anew, delete this file)") from None


def oddity(name: str, kept: store.Kept) -> str | None:
    """What to know of a copy that has not as many rows as its publisher's; None if it has, or nobody says."""
    rows = getattr(lookup("datasets", name), "rows", None)
    if rows in (None, (kept.train, kept.test)):
        return None
    return (
        f"as published, {name} has {rows[0]:,} training and {rows[1]:,} test rows, so that results on this copy "
        "cannot stand beside others"
    )


def bring(name: str, source: Path, data_dir: Path | None) -> store.Kept:
    """Convert a file, an archive or a folder that is here already; what was kept under this name is replaced."""
    piece = importable(name)
    return store.keep(name, piece.read(source), source.resolve().name, data_dir)


def by_hand(name: str, piece: Importable, data_dir: Path | None) -> str:
    """What to do where there is no network: which files to carry here, and the command that takes them."""
    option = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    urls = [item.url for item in piece.downloads]
    if len(urls) == 1:
        return f"get {urls[0]} elsewhere and run 'calibrant data import {name} {piece.downloads[0].name}{option}'"
    shown = f"{', '.join(urls[:-1])} and {urls[-1]}"
    return f"get {shown} elsewhere, put them into one folder and run 'calibrant data import {name} FOLDER{option}'"
