"""The pickles in which CIFAR is published, read without running what is in them.

A pickle is a program that may call anything it can name. Here it can name four things, the ones that a pickled numpy
array mentions, and gets none of them: they are replaced by classes of this module that only remember what they are
given. From that, an array is made by us, of a type that is looked up in a list. Before anything is run, the program
is read through: it may use the instructions that make such data, and none that could fill the memory or the stack.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from calibrant.core.errors import InputError
from calibrant.core.place import Place, show

MOST_BYTES = 1 << 30
TYPES = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f4", "f8", "b1"}
PLAIN = (type(None), bool, int, float, str, bytes)

CONTAINERS = {
    "EMPTY_LIST",
    "LIST",
    "EMPTY_TUPLE",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "EMPTY_DICT",
    "DICT",
}
REMEMBERING = {"BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"}
INSTRUCTIONS = {
    *CONTAINERS,
    *REMEMBERING,
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}
"""What protocols 2 to 4 write for numbers, texts, lists, dicts and arrays. No extension codes, no persistent ids."""

MOST_CONTAINERS = 1_000
MOST_REMEMBERED = 1 << 22


class _Type:
    """What a pickle says of a dtype: its code, and then its byte order."""

    def __init__(self, code: object = "", *_: object) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])

    def dtype(self) -> np.dtype[Any]:
        code = _text(self.code)
        if code not in TYPES or self.order not in ("|", "<", ">", "="):
            raise ValueError(f"an array of type {show(code)}")
        return np.dtype(self.order.replace("|", "=") + code)


class _Array:
    """What a pickle says of an array. It is built in two steps; the first, `_reconstruct`, tells nothing."""

    def __init__(self, *_: object) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> np.ndarray[Any, Any]:
        _, shape, kind, fortran, raw = self.state
        if not isinstance(kind, _Type) or not isinstance(raw, bytes):
            raise ValueError("an array without its bytes")
        if not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError("an array without a shape")
        dtype = kind.dtype()
        if math.prod(shape) * dtype.itemsize != len(raw):
            raise ValueError("an array whose bytes are not as many as its shape says")
        return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")


class _Bytes(bytes):
    """Bytes that a newer Python wrote into an old protocol as text: `_codecs.encode(text, "latin1")`."""

    def __new__(cls, text: str, encoding: str) -> _Bytes:
        if encoding not in ("latin1", "latin-1"):
            raise ValueError(f"bytes in {show(encoding)}")
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: object) -> None:
        raise ValueError("bytes with a state")


ADMITTED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Bytes,
} | {(module, "_reconstruct"): _Array for module in ("numpy.core.multiarray", "numpy._core.multiarray")}


class _Unpickler(pickle.Unpickler):  # noqa: TID251 (find_class hands out classes that do nothing; see above)
    place = Place()

    def find_class(self, module: str, name: str) -> Any:
        admitted = ADMITTED.get((module, name))
        if admitted is None:
            self.place.refuse(
                f"the pickle asks for {show(f'{module}.{name}', 80)}, which no dataset needs; it is refused, unrun"
            )
        return admitted


def unpickle(data: bytes, place: Place) -> Any:
    """Lists, tuples, dicts, texts, bytes, numbers and numpy arrays; what was a text in Python 2 is bytes, keys too."""
    if len(data) > MOST_BYTES:
        place.refuse(f"the pickle has more than {MOST_BYTES:,} bytes, more than CIFAR; it is refused")
    reader = _Unpickler(io.BytesIO(data), encoding="bytes")
    reader.place = place
    try:
        _read_through(data, place)
        return _made(reader.load(), {}, 0)
    except InputError:
        raise
    except Exception as error:  # whatever bytes can do to a parser
        place.refuse(f"the pickle is damaged, or holds what CIFAR does not ({show(error, 60)}); get it again")


def _read_through(data: bytes, place: Place) -> None:
    """Refuse what plain data never need: other instructions, places in memory far out, nesting without end.

    The reader of CPython makes room up to the highest place that is named, and hashes nested tuples by recursion, so a
    few bytes could ask for gigabytes or overflow the stack.
    """
    containers = 0
    for instruction, argument, _ in pickletools.genops(data):
        name = instruction.name
        if name not in INSTRUCTIONS:
            place.refuse(
                f"the pickle has the instruction {name}, which no dataset needs; it is refused, unrun"
            )
        if name in REMEMBERING and (argument or 0) > MOST_REMEMBERED:
            place.refuse(
                f"the pickle remembers a value as number {argument:,}, more than CIFAR; it is refused, unrun"
            )
        containers += name in CONTAINERS
        if containers > MOST_CONTAINERS:
            place.refuse(
                f"the pickle has more than {MOST_CONTAINERS:,} lists, tuples and dicts, more than CIFAR; "
                "it is refused, unrun"
            )


def _made(value: Any, made: dict[int, Any], depth: int) -> Any:
    """The value with arrays in place of what was said of them; anything but plain data is refused.

    `made` remembers by identity: a pickle can refer to one list a million times, and that is one list still.
    """
    if type(value) in PLAIN:
        return value
    if depth > 8:
        raise ValueError("data inside data without end")
    if id(value) in made:
        return made[id(value)]
    if type(value) is _Array:
        found: Any = value.array()
    elif type(value) is _Bytes:
        found = bytes(value)
    elif type(value) in (list, tuple):
        found = type(value)(_made(each, made, depth + 1) for each in value)
    elif type(value) is dict:
        found = {_made(key, made, depth + 1): _made(each, made, depth + 1) for key, each in value.items()}
    else:
        raise ValueError(f"a {type(value).__name__.strip('_')} by itself")
    made[id(value)] = found
    return found


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
