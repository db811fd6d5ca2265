"""Messages of newsgroups in the two forms in which they are passed on: folders by part and group, and JSON lines."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path
from typing import Any, NamedTuple

from calibrant.core.place import Place, show
from calibrant.data.tree import DAMAGES, Tree, tree

MOST_BYTES = 256 << 20
"""What all messages may take: seven times 20 Newsgroups."""

PARTS = {"20news-bydate-train": "train", "20news-bydate-test": "test"}


class Message(NamedTuple):
    """One message: its group, its number there, and its text in UTF-8."""

    group: str
    number: str
    text: bytes


def read(source: Path) -> tuple[list[Message], list[Message]]:
    """The messages of train and test, of an archive, its folder, or a jsonl that may be packed by xz."""
    place = Place(str(source))
    if source.is_file() and source.stat().st_size > MOST_BYTES:
        place.refuse(f"it is larger than {MOST_BYTES:,} bytes, more than these messages; it is refused")
    with tree(source) as files:
        lines = files.ending(".jsonl", ".jsonl.xz")
        found = in_lines(files, lines[0]) if len(lines) == 1 else in_folders(files)
    for part, messages in found.items():
        if not messages:
            place.refuse(
                f"there is no {part} part in it; import 20news-bydate.tar.gz, the folder of 20news-bydate-train and "
                "20news-bydate-test, or a jsonl of split, label, id and text"
            )
        names: set[tuple[str, str]] = set()
        for each in messages:
            if each[:2] in names:
                place.refuse(f"the {part} part has message {show(each.number)} of {show(each.group)} twice")
            names.add(each[:2])
    return found["train"], found["test"]


def in_folders(files: Tree) -> dict[str, list[Message]]:
    """`20news-bydate-train/GROUP/NUMBER` and the same for test; messages are in Latin-1."""
    found: dict[str, list[Message]] = {"train": [], "test": []}
    size = 0
    for name in files.names:
        *_, part, group, number = ["", "", *name.split("/")]
        if part in PARTS:
            text = files.read(name).decode("latin-1").encode()
            size = bounded(size + len(text), files.place)
            found[PARTS[part]].append(Message(group, number, text))
    return found


def in_lines(files: Tree, name: str) -> dict[str, list[Message]]:
    """One JSON object a line: split is "train" or "test", label the group, id the number there, and text."""
    data = files.read(name)
    if name.lower().endswith(".xz"):
        data = unpacked(data, files.place)
    bounded(len(data), files.place)
    found: dict[str, list[Message]] = {"train": [], "test": []}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            values: Any = json.loads(line)
            part, group, of, text = (values[key] for key in ("split", "label", "id", "text"))
            if part not in found or not (isinstance(group, str) and isinstance(text, str)):
                raise ValueError
            found[part].append(Message(group, str(of), text.encode()))
        except (KeyError, TypeError, ValueError, RecursionError):
            files.place.refuse(
                f"line {number} is no JSON object of split (train or test), label (the group), id and text"
            )
    return found


def unpacked(packed: bytes, place: Place) -> bytes:
    """What an xz holds, read no further than the bound."""
    try:
        return lzma.LZMAFile(io.BytesIO(packed)).read(MOST_BYTES + 1)
    except DAMAGES as error:
        place.refuse(f"the xz file is cut short or damaged ({show(error, 60)}); get it again")


def bounded(size: int, place: Place) -> int:
    """The size, if messages can be so large."""
    if size > MOST_BYTES:
        place.refuse(f"it unpacks to more than {MOST_BYTES:,} bytes, more than these messages; it is refused")
    return size
