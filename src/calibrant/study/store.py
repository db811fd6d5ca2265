"""Where a study keeps what is done: a file for each cell, a directory for each run, whole or not there.

    about.json  cells/HASH.json  runs/ID/  results.csv  tables.md  tables.tex  answer.json

A cell is named by the hash of its configuration and carries a hash of its own, which is checked when it is read. Only
the process that runs the study writes here; a worker writes into the directory of its run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.core.files import atomic, lock
from calibrant.core.place import Place
from calibrant.study.grid import SCHEMA, Cell


@dataclass(frozen=True)
class Record:
    """What is known of a cell: its numbers, or why it has none."""

    values: Mapping[str, float | None]
    reasons: Mapping[str, str]
    predictions: str | None
    notes: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Store:
    """The directory of a study."""

    root: Path

    @property
    def cells(self) -> Path:
        """Where the files of cells are."""
        return self.root / "cells"

    def run_directory(self, run_id: str) -> Path:
        """Where a run is trained."""
        return self.root / "runs" / run_id

    def read(self, cell: Cell) -> Record | None:
        """A cell that was done or has failed; None for one that is to come."""
        path = self.cells / f"{cell.key}.json"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        place = Place(str(path))
        try:
            found = json.loads(text)
            given = found.pop("sha256")
            if given != _hash(found) or found["config"] != json.loads(cell.config):
                raise KeyError
            result = found["result"]
            return Record(
                result["values"],
                result["reasons"],
                result["predictions"],
                tuple(result["notes"]),
                result["error"],
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            place.refuse("the file was changed or damaged; delete it, and run the study again")

    def write(self, cell: Cell, record: Record) -> None:
        """Keep a cell: synced and renamed, so that it is there whole or not at all."""
        result = {
            "values": dict(record.values),
            "reasons": dict(record.reasons),
            "predictions": record.predictions,
            "notes": list(record.notes),
            "error": record.error,
        }
        document = {"schema": SCHEMA, "config": json.loads(cell.config), "result": result}
        self._put(self.cells / f"{cell.key}.json", _json({**document, "sha256": _hash(document)}))

    def put(self, name: str, text: str) -> None:
        """Write one of the files at the top, unless it has these bytes already."""
        path = self.root / name
        data = text.encode()
        if not path.is_file() or path.read_bytes() != data:
            self._put(path, text)

    @staticmethod
    def _put(path: Path, text: str) -> None:
        with atomic(path) as file:
            file.write(text.encode())


@contextmanager
def opened_store(root: Path, study: str) -> Iterator[Store]:
    """The directory of this study, made if need be, and for this process alone."""
    place = Place(str(root))
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        place.refuse("this is a file; give the name of a directory")
    except OSError as error:
        place.refuse(f"cannot make this directory: {error.strerror or error}")
    about = root / "about.json"
    if about.is_file():
        _check_about(about, study)
    elif any(path.name not in (".lock", "about.json") and path.suffix != ".tmp" for path in root.iterdir()):
        place.refuse("this directory is not empty and holds no study; give a new one")
    try:
        held = (root / ".lock").open("w")
    except OSError as error:
        place.refuse(f"cannot write into this directory: {error.strerror or error}")
    with held:
        lock(held, place, "another process runs a study here; wait for it, or stop it")
        store = Store(root)
        store.put("about.json", _json({"schema": SCHEMA, "study": study}))
        for folder in (store.cells, root / "runs"):
            folder.mkdir(exist_ok=True)
        _sweep(store)
        yield store


def _check_about(path: Path, study: str) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["study"]
    except (ValueError, KeyError, TypeError):
        Place(str(path)).refuse("the file was changed or damaged; give a new directory")
    if found != study:
        Place(str(path.parent)).refuse(
            f"the study {found!r} lies here, not {study!r}; give another directory"
        )


def _sweep(store: Store) -> None:
    """Remove the drafts of processes that were killed while they wrote; nobody else writes here."""
    for draft in store.root.rglob(".*.tmp"):
        draft.unlink(missing_ok=True)


def _hash(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _json(document: Any) -> str:
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"
