"""A TOML text that knows the line of everything in it, and tables of it that are read strictly.

`tomllib` gives values without lines. What is refused in a study names its line, so the keys are looked for a second
time here; a value ends where the text from its key on is a TOML of its own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, NoReturn

from calibrant.core.errors import nearest
from calibrant.core.place import Place, show

Path = tuple[str | int, ...]
_HEADER = re.compile(r"\s*(\[\[?)(.+?)\]\]?\s*(#.*)?$")
_KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"}


class Source:
    """The values of a TOML text, and where each stands."""

    def __init__(self, text: str, name: str) -> None:
        self.place = Place(name)
        try:
            self.values: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self.place.refuse(f"this is no TOML: {error}")
        self.lines = dict(_lines(text))

    def refuse(self, path: Path, text: str) -> NoReturn:
        """Say what is wrong, with the line of the key or of the nearest that holds it."""
        known = (self.lines.get(path[:length]) for length in range(len(path), 0, -1))
        line = next((found for found in known if found is not None), 1)
        self.place.refuse(f"line {line}: {text}")

    def table(self) -> Table:
        """The whole of it."""
        return Table(self, (), self.values)


class Table:
    """One table, from which keys are taken; what nobody has taken in the end is refused."""

    def __init__(self, source: Source, path: Path, values: dict[str, Any]) -> None:
        self.source, self.path, self.values = source, path, values
        self.taken: list[str] = []

    def refuse(self, text: str, *keys: str | int) -> NoReturn:
        """Say what is wrong with this table, or with a key in it."""
        self.source.refuse((*self.path, *keys), text)

    def take(self, key: str, kind: type, default: Any = ...) -> Any:
        """A value of a kind; without a default it has to be there."""
        self.taken.append(key)
        if key not in self.values:
            if default is ...:
                for other in get_close_matches(key, [each for each in self.values if each not in self.taken]):
                    self.refuse(f"there is no {other!r} in {self._name()}; did you mean {key!r}?", other)
                self.refuse(f"{self._name()} needs {key!r}, {_KINDS.get(kind, 'a list')}")
            return default
        value = self.values[key]
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            self.refuse(f"{key} is {_KINDS.get(kind, 'a list')}, not {show(value)!r}", key)
        return value

    def texts(self, key: str, default: Any = ...) -> tuple[str, ...]:
        """A list of texts."""
        found = self.take(key, list, default)
        if not all(type(each) is str for each in found):
            self.refuse(f"{key} is a list of texts, not {show(found)}", key)
        return tuple(found)

    def table(self, key: str, *, required: bool = False) -> Table:
        """A table in this one; an empty one where there is none."""
        return Table(self.source, (*self.path, key), self.take(key, dict, ... if required else {}))

    def tables(self, key: str) -> Iterator[Table]:
        """The tables of an array, `[[key]]`."""
        for number, each in enumerate(self.take(key, list, [])):
            if type(each) is not dict:
                self.refuse(f"{key} is a list of tables; write [[{key}]] before each", key)
            yield Table(self.source, (*self.path, key, number), each)

    def names(self) -> list[str]:
        """The keys, for a table whose keys are names that the study gives."""
        return list(self.values)

    def done(self, more: Iterable[str] = ()) -> None:
        """Refuse the keys that nobody has taken."""
        known = [*self.taken, *more]
        for key in self.values:
            if key not in known:
                self.refuse(f"there is no {key!r} in {self._name()}{nearest(key, known)}", key)

    def _name(self) -> str:
        names = [str(each) for each in self.path if isinstance(each, str)]
        return f"[{'.'.join(names)}]" if names else "a study"


def _lines(text: str) -> Iterator[tuple[Path, int]]:
    """Every header and key with its line."""
    lines = text.splitlines()
    above: Path = ()
    counts: dict[Path, int] = {}
    at = 0
    while at < len(lines):
        line, first = lines[at], at + 1
        at += 1
        header = _HEADER.match(line)
        if header:
            above = _keys(header[2])
            if header[1] == "[[":
                number = counts.get(above, 0)
                counts[above] = number + 1
                above = (*above, number)
            yield above, first
        elif "=" in line and not line.lstrip().startswith("#"):
            chunk = line
            while not _whole(chunk) and at < len(lines):
                chunk += "\n" + lines[at]
                at += 1
            path = above
            for key in _keys(chunk):
                path = (*path, key)
                yield path, first


def _whole(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _keys(text: str) -> Path:
    """The keys of a header `a.b` or of the first key of `a.b = 1`; inline tables are not entered."""
    dotted = text.strip() if _whole(f"{text.strip()} = 0") else _before(text)
    value: Any = tomllib.loads(f"{dotted} = 0")
    found: list[str] = []
    while isinstance(value, dict):
        found.append(next(iter(value)))
        value = value[found[-1]]
    return tuple(found)


def _before(text: str) -> str:
    """What stands before the equals sign of a key, which may hold one in quotes."""
    ends = [place for place, char in enumerate(text) if char == "="]
    return next(text[:end] for end in ends if _whole(f"{text[:end]} = 0"))
