"""Tensors on disk: safetensors with a schema version and a SHA-256 of every byte, so that nothing can run code.

What a file holds is said by its `kind` ("weights", "checkpoint", "calibrator"); a file of another kind, of a newer
schema, cut short or changed by one bit is refused in one sentence. The hash stands in the header; it is taken over the
whole file with zeros in its own place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from torch import Tensor

from calibrant.core.files import atomic, opened
from calibrant.core.place import Place, show

SCHEMA = 1
"""Version of what is stored. A reader refuses a newer one, and reads every older one."""

LONGEST = 16 << 20
"""Bytes of a header: names, shapes and meta. Tensors are not bounded by it."""

_SEAL = b'"sha256":"'
_BLANK = "0" * 64
_CHUNK = 8 << 20


def save_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a whole file or none; `meta` is what JSON can hold."""
    from safetensors.torch import save

    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(meta, sort_keys=True, allow_nan=False)
    header = {"calibrant": kind, "schema": str(SCHEMA), "meta": text, "sha256": _BLANK}
    data = _in_order(save(held, header))
    spot = data.index(_SEAL) + len(_SEAL)
    with atomic(path) as file:
        file.write(data[:spot])
        file.write(hashlib.sha256(data).hexdigest().encode())
        file.write(memoryview(data)[spot + len(_BLANK) :])


def _in_order(data: bytes) -> bytes:
    """The file with its metadata sorted, which safetensors writes in an order that changes from call to call."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def load_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a file that `save_tensors` wrote."""
    place = Place(str(path))
    with opened(path, place, f"a {kind} file") as file:
        length, header = _header(file, place)
        about = _metadata(header, place)
        if about.get("calibrant") != kind:
            place.refuse(
                f"this is no file of {kind}, but of {show(about.get('calibrant', 'another program'))}"
            )
        _check_schema(str(about.get("schema", "")), place)
        _check_seal(length, header, file, place)
    meta = parse_object(str(about.get("meta", "")), place)
    return _tensors(path, place), meta


def parse_object(text: str | bytes, place: Place) -> dict[str, Any]:
    """A JSON object; anything else, and what Python's reader takes for JSON and is none, is refused."""
    try:
        found = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        _damaged(place, "its header is no JSON")
    if not isinstance(found, dict):
        _damaged(place, "its header is no JSON object")
    return found


def _header(file: BinaryIO, place: Place) -> tuple[bytes, bytes]:
    """The eight bytes of its length, and the header."""
    length = file.read(8)
    size = int.from_bytes(length, "little")
    if len(length) < 8 or size > LONGEST:
        place.refuse("this is no safetensors file, or a damaged one; write it again")
    header = file.read(size)
    if len(header) < size:
        place.refuse("this is no whole safetensors file: its end is missing; copy or write it again")
    return length, header


def _metadata(header: bytes, place: Place) -> dict[str, Any]:
    found = parse_object(header, place).get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def _check_schema(schema: str, place: Place) -> None:
    if not (schema.isascii() and schema.isdecimal() and len(schema) < 10):
        _damaged(place, f"it has no schema version but {show(schema, 20)!r}")
    if int(schema) > SCHEMA:
        place.refuse(
            f"written by a newer Calibrant (schema {int(schema)}, this one reads up to {SCHEMA});"
            " upgrade with pip install -U calibrant"
        )


def _check_seal(length: bytes, header: bytes, file: BinaryIO, place: Place) -> None:
    """Compare the hash in the header with that of the file, read piece by piece."""
    spot = header.find(_SEAL) + len(_SEAL)
    if header.count(_SEAL) != 1:
        _damaged(place, "its SHA-256 is gone")
    end = spot + len(_BLANK)
    found = hashlib.sha256(length + header[:spot] + _BLANK.encode() + header[end:])
    while chunk := file.read(_CHUNK):
        found.update(chunk)
    if header[spot:end] != found.hexdigest().encode():
        _damaged(place, "its SHA-256 does not fit what it holds")


def _tensors(path: Path, place: Place) -> dict[str, Tensor]:
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except Exception as error:  # whatever bytes can do to a parser
        place.refuse(f"this is no whole safetensors file ({show(error, 120)}); write it again")


def _no_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _damaged(place: Place, why: str) -> NoReturn:
    place.refuse(f"the file was changed or damaged, because {why}; write it again")
