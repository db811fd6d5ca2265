"""Where pieces are found by name: a room is a package, and importing its modules registers what they hold.

A piece is a frozen dataclass of hyper-parameters with a decorator:

    @register("metrics", "ece", paper="naeini2015")
    @dataclass(frozen=True)
    class ECE: ...

Nothing else has to be edited: `discover` imports every module of the rooms that belong to a kind, so a new file
is seen by the command line, the documentation and the contract tests alike.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, TypeVar

from calibrant.core.errors import SpecError, nearest

ROOMS: dict[str, tuple[str, ...]] = {
    "losses": ("losses",),
    "penalties": ("losses", "surrogates"),
    "surrogates": ("surrogates",),
    "meta": ("meta",),
    "augment": ("losses", "data"),
    "calibrators": ("calibrators",),
    "metrics": ("metrics",),
    "datasets": ("data",),
    "models": ("models",),
}
"""Which packages may hold pieces of which kind. A kind without a package yet has no pieces."""

T = TypeVar("T")

CONVENTION: dict[str, Any] = {"convention": True}
"""Metadata of a field with a convention for its default, such as `ignore_index`: a spec shows it when it differs."""


@dataclass(frozen=True)
class Parameter:
    """One hyper-parameter of a piece, as it is written in a spec."""

    name: str
    type: Any
    default: Any
    required: bool
    convention: bool = False

    def is_shown(self, value: Any) -> bool:
        """Whether a canonical spec writes this value out: always, but for a convention that is kept."""
        return not (self.convention and value == self.default)


@dataclass(frozen=True)
class Entry:
    """What a reader, a test or the command line needs to know about one registered piece."""

    kind: str
    name: str
    piece: type
    paper: str | None
    summary: str
    doc: str
    parameters: tuple[Parameter, ...]

    @property
    def canonical(self) -> str:
        """The piece with every default written out, as far as it has defaults: `ece(bins=15)`."""
        from calibrant.core.spec import show_value

        shown = [
            f"{p.name}={show_value(p.default)}"
            for p in self.parameters
            if not p.required and not p.convention
        ]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


_pieces: dict[str, dict[str, tuple[type, str | None]]] = {}
_names: dict[type, tuple[str, str]] = {}


def register(kind: str, name: str, *, paper: str | None = None) -> Callable[[type[T]], type[T]]:
    """Give a frozen dataclass its name in one kind; a name that is taken by another class is refused."""
    if kind not in ROOMS:
        raise ValueError(f"no kind {kind!r}{nearest(kind, ROOMS)}")

    def enter(piece: type[T]) -> type[T]:
        taken = _pieces.setdefault(kind, {}).get(name)
        if taken is not None and taken[0].__qualname__ != piece.__qualname__:
            raise ValueError(f"{kind} {name!r} is already {taken[0].__module__}.{taken[0].__qualname__}")
        _pieces[kind][name] = (piece, paper)
        _names[piece] = (kind, name)
        return piece

    return enter


@cache
def discover(kind: str) -> None:
    """Import every module of the rooms of one kind, once."""
    for room in ROOMS[kind]:
        path = f"calibrant.{room}"
        try:
            package = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name == path:
                continue
            raise
        for module in pkgutil.iter_modules(package.__path__, path + "."):
            importlib.import_module(module.name)


def names(kind: str) -> list[str]:
    """The sorted names of one kind."""
    if kind not in ROOMS:
        raise SpecError(f"no kind {kind!r}{nearest(kind, ROOMS)}")
    discover(kind)
    return sorted(_pieces.get(kind, {}))


def lookup(kind: str, name: str) -> type:
    """The class behind a name, or an error that offers the nearest name."""
    known = names(kind)
    if name not in known:
        raise SpecError(f"no {_singular(kind)} {name!r}{nearest(name, known)}")
    return _pieces[kind][name][0]


def name_of(piece: object) -> str:
    """The registered name of an instance."""
    return _names[type(piece)][1]


def parameters(piece: type) -> tuple[Parameter, ...]:
    """The hyper-parameters of a piece: its own fields with resolved types, then those that its whole kind has.

    The latter are keyword-only in an interface; of them, those with a convention come last.
    """
    hints = typing.get_type_hints(piece)
    found = []
    for f in sorted(fields(piece), key=lambda f: f.kw_only is True):
        required = f.default is MISSING and f.default_factory is MISSING
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        convention = bool(f.metadata.get("convention"))
        found.append(Parameter(f.name, hints[f.name], None if required else default, required, convention))
    return tuple(sorted(found, key=lambda parameter: parameter.convention))


def describe(kind: str) -> list[Entry]:
    """Every piece of one kind, in name order: this feeds `calibrant list`, the documentation and the tests."""
    entries = []
    for name in names(kind):
        piece, paper = _pieces[kind][name]
        doc = inspect.getdoc(piece) or ""
        summary = doc.split("\n\n")[0].replace("\n", " ")
        entries.append(Entry(kind, name, piece, paper, summary, doc, parameters(piece)))
    return entries


def type_name(hint: Any) -> str:
    """How a parameter's type is called in messages and tables."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return "numbers such as (1, 2)"
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(type_name(a) for a in typing.get_args(hint))
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _singular(kind: str) -> str:
    irregular = {
        "losses": "loss",
        "penalties": "penalty",
        "meta": "meta-regulariser",
        "augment": "augmentation",
    }
    return irregular.get(kind, kind.removesuffix("s"))
