"""Published files where they lie: in a folder, in an archive, or alone; read by name, and never unpacked under a name.

An archive is read in place, so that no member of it can become a file outside its folder. What a well-meant archive
of data has no use for (links, devices, absolute paths, `..`) is refused all the same, and so is one that unpacks to
more than a dataset can be.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

from calibrant.core.errors import InputError
from calibrant.core.files import opened
from calibrant.core.place import Place, show

MOST_BYTES = 8 << 30
"""What an archive may unpack to: six times Tiny-ImageNet as raw pixels."""

MOST_FILES = 1_000_000

MOST_HEADER = 1 << 20
"""What may stand about one member of a tar: its name, and what newer formats add. It is read into memory."""

PACKED: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda file: cast(IO[bytes], gzip.GzipFile(fileobj=file)),
    ".tgz": lambda file: cast(IO[bytes], gzip.GzipFile(fileobj=file)),
    ".bz2": lambda file: cast(IO[bytes], bz2.BZ2File(file)),
    ".xz": lambda file: cast(IO[bytes], lzma.LZMAFile(file)),  # noqa: SIM115 (a stack closes what lies below)
}
DAMAGES = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError),
    *(OSError, ValueError, OverflowError, RuntimeError, NotImplementedError, RecursionError),
)
Reader = Callable[[str], bytes]
Member = TypeVar("Member")


@dataclass(frozen=True, eq=False)
class Tree:
    """Files by their paths, written with slashes and sorted; hidden ones (`.name`) are left out."""

    place: Place
    names: tuple[str, ...]
    reader: Reader

    def read(self, name: str) -> bytes:
        """All bytes of one file."""
        try:
            return self.reader(name)
        except InputError:
            raise
        except DAMAGES as error:
            self.place.refuse(f"cannot read {show(name, 100)} in it ({show(error, 60)}); get it again")

    def ending(self, *ends: str) -> list[str]:
        """The files whose names end so, in any case."""
        return [name for name in self.names if name.lower().endswith(ends)]

    def named(self, *choices: str) -> str | None:
        """The one file that has one of these names, whatever its folder; None if there is none."""
        found = [name for name in self.names if name.rsplit("/", 1)[-1] in choices]
        if len(found) > 1:
            self.place.refuse(
                f"it holds {show(found[0])} and {show(found[1])}; name the folder of one of them"
            )
        return found[0] if found else None


@contextmanager
def tree(source: Path) -> Iterator[Tree]:
    """The files of a folder, of a zip or tar archive (by its suffix, compressed or not), or a single file."""
    place = Place(str(source))
    if source.is_dir():
        yield _folder(source, place)
        return
    with ExitStack() as stack:
        file = stack.enter_context(opened(source, place))
        name = source.name.lower()
        if name.endswith(".zip"):
            yield _damage_told(place, lambda: _zip(stack.enter_context(zipfile.ZipFile(file)), place))
        elif name.endswith((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")):
            yield _damage_told(place, lambda: _tar(file, source.suffix.lower(), stack, place))
        else:
            yield Tree(place, (source.name,), lambda _: source.read_bytes())


def gunzip(packed: bytes, most: int, place: Place) -> bytes:
    """What a gz holds, if that is no more than `most` bytes."""
    try:
        data = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(most + 1)
    except DAMAGES as error:
        place.refuse(f"the gz file is cut short or damaged ({show(error, 60)}); get it again")
    if len(data) > most:
        place.refuse(f"it unpacks to more than {most:,} bytes, which is more than it can hold; it is refused")
    return data


def _damage_told(place: Place, make: Callable[[], Tree]) -> Tree:
    try:
        return make()
    except InputError:
        raise
    except DAMAGES as error:
        if isinstance(error, OSError) and error.errno:
            place.refuse(f"cannot unpack the archive, in {tempfile.gettempdir()}: {error.strerror}")
        place.refuse(f"the archive is cut short or damaged ({show(error, 60)}); get it again")


def _folder(source: Path, place: Place) -> Tree:
    names = []
    for folder, folders, files in os.walk(source):
        folders[:] = [each for each in folders if not each.startswith(".")]
        names += [(Path(folder) / each).relative_to(source).as_posix() for each in files if each[0] != "."]
        if len(names) > MOST_FILES:
            place.refuse(f"it holds more than {MOST_FILES:,} files; name the folder of the dataset alone")
    return Tree(place, tuple(sorted(names)), lambda name: (source / name).read_bytes())


def _zip(archive: zipfile.ZipFile, place: Place) -> Tree:
    members: dict[str, zipfile.ZipInfo] = {}
    _bounded(len(archive.infolist()), sum(member.file_size for member in archive.infolist()), place)
    for member in archive.infolist():
        if stat.S_ISLNK(member.external_attr >> 16):
            place.refuse(
                f"{show(member.filename, 100)} in it is a link, which no dataset needs; it is refused"
            )
        name = _inside(member.filename, place)
        if not member.is_dir():
            _enter(members, name, member, place)
    return Tree(place, _shown(members), lambda name: archive.read(members[name]))


def _tar(file: IO[bytes], suffix: str, stack: ExitStack, place: Place) -> Tree:
    """A compressed one is first uncompressed into a file without a name, so that members can be read in any order."""
    if suffix in PACKED:
        plain = tempfile.TemporaryFile()  # noqa: SIM115 (the stack closes it)
        file = _uncompressed(PACKED[suffix](file), stack.enter_context(plain), place)
    headers = _Headers(file, place)
    archive = stack.enter_context(tarfile.TarFile(fileobj=cast(IO[bytes], headers)))
    members: dict[str, tarfile.TarInfo] = {}
    size = 0
    for number, member in enumerate(archive, 1):
        size += member.size
        _bounded(number, size, place)
        name = _inside(member.name, place)
        if member.issym() or member.islnk():
            place.refuse(f"{show(member.name, 100)} in it is a link, which no dataset needs; it is refused")
        if not (member.isdir() or member.isreg()) or member.issparse():
            place.refuse(f"{show(member.name, 100)} in it is no plain file; it is refused")
        if member.isreg():
            _enter(members, name, member, place)
    headers.most = MOST_BYTES
    return Tree(place, _shown(members), lambda name: _member(archive, members[name]))


class _Headers:
    """The file of a tar, of which no more than a header is read at once while its members are looked for."""

    def __init__(self, file: IO[bytes], place: Place) -> None:
        self.file, self.place, self.most = file, place, MOST_HEADER
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > self.most:
            self.place.refuse(f"a header in it has {size:,} bytes, which no dataset needs; it is refused")
        return self.file.read(size)


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    data = b"" if file is None else file.read()
    if len(data) != member.size:
        raise EOFError("it is cut short")
    return data


def _uncompressed(packed: IO[bytes], plain: IO[bytes], place: Place) -> IO[bytes]:
    size = 0
    while piece := packed.read(4 << 20):
        size += len(piece)
        _bounded(1, size, place)
        plain.write(piece)
    plain.seek(0)
    return plain


def _bounded(files: int, size: int, place: Place) -> None:
    if files > MOST_FILES:
        place.refuse(f"the archive holds more than {MOST_FILES:,} files, more than a dataset; it is refused")
    if size > MOST_BYTES:
        place.refuse(
            f"the archive unpacks to more than {MOST_BYTES:,} bytes, more than a dataset; it is refused"
        )


def _inside(name: str, place: Place) -> str:
    """A member's path without what is idle in it; one that leaves the archive's folder is refused."""
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ":" in parts[0]:
        place.refuse(f"{show(name, 100)} in it is an absolute path, which no dataset needs; it is refused")
    if ".." in parts:
        place.refuse(f"{show(name, 100)} in it leads out of the archive's folder; it is refused")
    return "/".join(part for part in parts if part not in ("", "."))


def _enter(members: dict[str, Member], name: str, member: Member, place: Place) -> None:
    if name in members:
        place.refuse(f"it holds {show(name, 100)} twice; it is refused")
    members[name] = member


def _shown(members: dict[str, zipfile.ZipInfo] | dict[str, tarfile.TarInfo]) -> tuple[str, ...]:
    return tuple(sorted(name for name in members if not any(part[0] == "." for part in name.split("/"))))
