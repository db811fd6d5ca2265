"""Predictions in a numpy archive: never unpickled, checked byte by byte, mapped into memory where that helps.

An npz file is a zip archive of `.npy` members. Large members that are stored without compression are
mapped, not read, so that a file of a million rows needs no memory of its own; the map is private, so that
nothing written to the arrays reaches the file. Every member's CRC is checked, mapped or not.
"""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from calibrant.core.content import Content, choose, unpack
from calibrant.core.errors import InputError
from calibrant.core.files import atomic, opened
from calibrant.core.place import Place, show

Array = np.ndarray[Any, Any]

MAP_FROM = 32 << 20
"""Bytes from which a member is mapped. Smaller ones are read, and survive what happens to the file."""

STEP = 8 << 20
"""Bytes that are read or checked at once."""

ALIGNMENT = 64
"""Where our arrays begin in a file, so that a map of them is aligned for every type."""

PADDING = 0xD935
"""The zip extra field that other tools use for alignment, too."""

DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError)


def read(path: Path, place: Place) -> Content:
    """The arrays that make predictions, and the meta."""

    def chosen(found: list[str]) -> Mapping[str, str]:
        return choose([name for name in found if name != "meta"], place, "arrays", found)

    arrays, text = members(path, place, chosen)
    if text is None:
        return Content(arrays)
    meta, entry = unpack(text, place)
    return Content(arrays, meta, entry)


def members(
    path: Path, place: Place, choice: Callable[[list[str]], Mapping[str, str]]
) -> tuple[dict[str, Array], str | None]:
    """The members that are chosen, from their stored names, under names of one's own; and the text of `meta`."""
    with opened(path, place, "one npz file") as file:
        _recognise(file, place)
        try:
            with zipfile.ZipFile(file) as archive:
                return _read(archive, file, path, place, choice)
        except InputError:
            raise
        except (*DAMAGES, OSError, ValueError, OverflowError) as error:
            if not zipfile.is_zipfile(file):
                place.refuse("the end of the file is missing; copy or write it again")
            if isinstance(error, OSError) and error.errno:
                place.refuse(f"cannot read this file: {error.strerror}")
            place.refuse(f"the file is cut short or damaged ({show(error, 60)}); write it again")


def write(path: Path, arrays: Mapping[str, Array], text: str) -> None:
    """Write an uncompressed archive: the same bytes for the same content, aligned for mapping."""
    with atomic(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in {**arrays, "meta": np.array(text)}.items():
            member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o644 << 16
            before = file.tell() + 30 + len(member.filename) + 20  # local header, name, zip64 field
            padding = -(before + 4) % ALIGNMENT
            member.extra = struct.pack("<HH", PADDING, padding) + bytes(padding)
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def _recognise(file: BinaryIO, place: Place) -> None:
    start = file.read(6)
    file.seek(0)
    if start.startswith(b"\x93NUMPY"):
        place.refuse("this is one array in npy format; save all with np.savez(path, logits=..., labels=...)")
    if not start.startswith(b"PK"):
        place.refuse("this is no npz archive; write it with np.savez(path, logits=..., labels=...)")


def _read(
    archive: zipfile.ZipFile,
    file: BinaryIO,
    path: Path,
    place: Place,
    choice: Callable[[list[str]], Mapping[str, str]],
) -> tuple[dict[str, Array], str | None]:
    found: dict[str, zipfile.ZipInfo] = {}
    if _entries(file) not in (len(archive.infolist()), 0xFFFF):  # a damaged length can hide an entry
        raise zipfile.BadZipFile("entries are missing")
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in found:
            place.refuse(f"it holds {show(name)} twice; write it again")
        found[name] = member
        with archive.open(member):  # compares the names in the directory and at the member
            pass
    chosen = choice(list(found))
    arrays = {own: _array(archive, file, path, found[name], place) for own, name in chosen.items()}
    if "meta" not in found:
        return arrays, None
    text = _array(archive, file, path, found["meta"], place)
    if text.ndim or text.dtype.kind not in "US":
        place.refuse("its meta is no text; store it as np.array(json.dumps(meta))")
    return arrays, text.item()


def _entries(file: BinaryIO) -> int:
    """How many members the archive says that it has, at its very end."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 16) - 22))
    end = file.read()
    count: int = struct.unpack_from("<H", end, end.rindex(b"PK\5\6") + 10)[0]
    return count


def _array(
    archive: zipfile.ZipFile, file: BinaryIO, path: Path, member: zipfile.ZipInfo, place: Place
) -> Array:
    """One member as an array over its own bytes: a map of the file, or one buffer that was read."""
    name, stored = show(member.filename), member.compress_type == zipfile.ZIP_STORED
    total = os.fstat(file.fileno()).st_size
    # Deflate packs at most 1032 to 1; no method that numpy writes does better.
    if member.file_size > (total if stored else 1040 * member.compress_size + 1024):
        place.refuse(
            f"{name} claims {member.file_size} bytes, more than the file can hold; it is damaged, write it again"
        )
    raw = _mapped(file, path, member) if stored and member.file_size >= MAP_FROM else None
    if raw is None:
        raw = np.empty(member.file_size, np.uint8)
        with archive.open(member) as stream:  # checks the CRC when it comes to the end
            at = 0  # in pieces, since a zip member copies what it reads at once
            while read := stream.readinto(raw.data[at : at + STEP]):  # type: ignore[attr-defined]
                at += read
            if at != member.file_size or stream.read(1):
                place.refuse(f"{name} is cut short; the file is damaged, write it again")
    shape, fortran, dtype, start = _header(raw, name, place)
    if dtype.hasobject:
        place.refuse(f"{name} holds Python objects, which are never loaded; save it as numbers or texts")
    if start + math.prod(shape) * dtype.itemsize != len(raw) or min(shape, default=0) < 0:
        place.refuse(f"{name} has another size than its header says; the file is damaged, write it again")
    array = np.ndarray(shape, dtype, raw.data, start, order="F" if fortran else "C")
    return array if array.flags.aligned else array.copy()


def _mapped(file: BinaryIO, path: Path, member: zipfile.ZipInfo) -> Array | None:
    """The member's bytes as a private map, or None where the file cannot be mapped as it is."""
    file.seek(member.header_offset)
    name, extra = struct.unpack("<26xHH", file.read(30))
    start = member.header_offset + 30 + name + extra
    if start % 8:  # as numpy leaves it: its numbers would not be aligned, so they are read into a buffer
        return None
    try:
        raw = np.memmap(path, np.uint8, "c", start, (member.file_size,)).view(np.ndarray)
    except (OSError, ValueError):
        return None
    crc = 0
    for at in range(0, len(raw), STEP):
        crc = zlib.crc32(raw[at : at + STEP].data, crc)
    if crc != member.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for {member.filename}")
    return raw


def _header(raw: Array, name: str, place: Place) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    stream = io.BytesIO(raw[: 1 << 16].tobytes())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(stream)
            parse = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = parse(stream)
    except Exception:  # whatever bytes can do to a parser
        place.refuse(f"{name} is no array in npy format; write the file with np.savez")
    return shape, fortran, dtype, stream.tell()
