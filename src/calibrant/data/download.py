"""One published file from the network: what broke off goes on from where it was, and nothing counts before its hash."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.core.samples import Download

Report = Callable[[int, int], None]

TIMEOUT = 30.0
TRIES = 20
PIECE = 1 << 20
MOST_BYTES = 8 << 30


class Unreachable(InputError):
    """The file cannot be had from its address now; the message says why, and its caller how else to get it."""


def download(item: Download, folder: Path, report: Report) -> Path:
    """The file in `folder`, under its own name once its hash was found right; until then it is `NAME.part`.

    `report` is told bytes done and bytes in all. A connection that breaks after it gave something is tried again.
    """
    path, part = folder / item.name, folder / f"{item.name}.part"
    if path.is_file() and _is_right(path, item):
        return path
    if not item.checksum:
        part.unlink(missing_ok=True)  # nothing would tell whether both halves are of one file
    for _ in range(TRIES):
        before = _size(part)
        if _is_whole(item, part, report):
            break
        if _size(part) <= before:
            raise Unreachable(f"the connection to {host(item)} breaks at {_size(part):,} bytes")
    else:
        raise Unreachable(
            f"the connection to {host(item)} broke {TRIES} times, at last at {_size(part):,} bytes"
        )
    if not _is_right(part, item):
        found = _digest(part, item)
        part.unlink()
        raise Unreachable(
            f"what {item.url} gave is not the published file ({found}, not {item.checksum}), and was deleted"
        )
    os.replace(part, path)
    return path


def host(item: Download) -> str:
    """The machine that has the file."""
    return urllib.parse.urlsplit(item.url).netloc


def _is_whole(item: Download, part: Path, report: Report) -> bool:
    """Ask for what is missing and add it to `part`; whether all has come."""
    have = _size(part)
    headers = {"User-Agent": "calibrant", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(item.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing comes after what we have: the hash decides what that is
            return True
        raise Unreachable(f"{item.url} answers {error.code} ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        why = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise Unreachable(f"{host(item)} cannot be reached ({why})") from None
    with answer:
        goes_on = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(
            f"bytes {have}-"
        )
        done = have if goes_on else 0
        length = answer.headers.get("Content-Length") or ""
        total = done + int(length) if length.isdecimal() else 0
        with part.open("ab" if goes_on else "wb") as file:
            while True:
                try:
                    piece = answer.read(PIECE)
                except (OSError, http.client.HTTPException):
                    return False
                if not piece:
                    return done >= total
                done += len(piece)
                if done > MOST_BYTES:
                    raise Unreachable(
                        f"{item.url} gives more than {MOST_BYTES:,} bytes, more than any dataset of ours"
                    )
                file.write(piece)
                report(done, max(total, done))


def _is_right(path: Path, item: Download) -> bool:
    return not item.checksum or _digest(path, item) == item.checksum


def _digest(path: Path, item: Download) -> str:
    """The hash of a file, of its publisher's kind. MD5 serves: nobody finds a second file to one that is given."""
    kind = item.checksum.split(":")[0]
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
