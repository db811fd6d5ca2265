"""Files that are whole or not there: opening with a plain sentence, and writing by rename."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from calibrant.core.place import Place


@contextmanager
def opened(path: Path, place: Place, wanted: str = "one file") -> Iterator[BinaryIO]:
    """A file opened for reading that is there, may be read and is not empty; a directory is told what is `wanted`."""
    if path.is_dir():
        place.refuse(f"this is a directory; give {wanted}")
    try:
        file = path.open("rb")
    except FileNotFoundError:
        hint = "check the path" if path.is_absolute() else f"looked for it from {Path.cwd()}"
        place.refuse(f"there is no such file; {hint}")
    except PermissionError:
        place.refuse("no permission to read this file; allow it with chmod +r")
    except (OSError, ValueError) as error:
        place.refuse(f"cannot open this file: {getattr(error, 'strerror', None) or error}")
    with file:
        if not os.fstat(file.fileno()).st_size:
            place.refuse("the file is empty (0 bytes); write it again")
        yield file


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when everything is written and on the disk.

    It is written under another name in the same directory, synced and renamed; after an error, a full disk
    or a kill, what was there before is still there, whole.
    """
    place = Place(str(path))
    if path.is_dir():
        place.refuse("this is a directory; give the name of a file to write")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        _sync_directory(path.parent)
    except FileNotFoundError:
        place.refuse(f"cannot write, because there is no directory {path.parent}; make it first")
    except OSError as error:
        place.refuse(f"cannot write this file: {error.strerror or error}")
    finally:
        draft.unlink(missing_ok=True)


def lock(file: IO[str], place: Place, refusal: str) -> None:
    """Hold a file for this process until it ends, however it ends; refuse where another process has it."""
    try:
        import fcntl
    except ImportError:  # a system without such locks: two processes are not kept apart there
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        place.refuse(refusal)


def _sync_directory(path: Path) -> None:
    """Make the rename itself last; some systems cannot open a directory, and then there is nothing to do."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
