"""Spec strings, the one configuration language: `focal(gamma=3)`, `ce + 0.01*lp_norm(p=1)`, `ece(bins=15)`.

A spec is parsed with `ast` and never evaluated. It is a sum of terms; a term is a name with keyword arguments and
an optional number in front; an argument is a number, a string, True, False, None, numbers such as `(1, 2)` or another
spec. It prints back in one canonical form in which every parameter stands, so that a changed default changes every
hash made of it; only conventions (`ignore_index=-100`, no class weights) are left out while they are kept.
"""

from __future__ import annotations

import ast
import json
import math
import re
import typing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.core.errors import CalibrantError, SpecError, nearest
from calibrant.core.registry import lookup, name_of, parameters, type_name

_LONGEST = 2000
_PUBLISHED_NAME = re.compile(r"(?=[\w-]*-|\d)([A-Za-z0-9](?:[\w-]*[A-Za-z_][\w-]*)?)(\(.*\))?$", re.DOTALL)
Value = Any  # int | float | str | bool | None | tuple of numbers | Call, as parsed


@dataclass(frozen=True)
class Call:
    """A name with its arguments as written: `focal(gamma=3)`."""

    name: str
    args: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.name}({', '.join(f'{k}={show_value(v)}' for k, v in self.args)})"
            if self.args
            else self.name
        )


@dataclass(frozen=True)
class Term:
    """A call with its factor: `- 0.1*entropy`."""

    factor: float
    call: Call


@dataclass(frozen=True)
class Spec:
    """A parsed spec string: one term or a sum of them."""

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return join_terms((term.factor, str(term.call)) for term in self.terms)


def parse(text: str) -> Spec:
    """Read a spec string; what is not in the grammar is refused with the place where it stands."""
    source = text.strip()
    if not source:
        raise SpecError("the spec is empty; write a name such as 'ece(bins=15)'")
    if len(source) > _LONGEST:
        raise SpecError(f"{_short(text)} has {len(source):,} characters; a spec has at most {_LONGEST:,}")
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
        raise SpecError(
            f"cannot read {_short(text)}{where}; a spec looks like 'ce + 0.01*lp_norm(p=1)'"
        ) from None
    return Spec(tuple(_terms(tree, 1.0, source)))


def build(text: str, kind: str) -> Any:
    """One piece from a spec with exactly one term and no factor, such as a metric or a calibrator.

    Here a name may also be one that is no Python identifier: `fashion-mini`, `20newsgroups(length=400)`.
    """
    published = _PUBLISHED_NAME.match(text.strip())
    if published:
        name, arguments = published[1], published[2] or ""
        return make(replace(parse("name" + arguments).terms[0].call, name=name), kind)
    spec = parse(text)
    if len(spec.terms) != 1 or spec.terms[0].factor != 1.0:
        raise SpecError(
            f"{_short(text)} is a sum or a multiple; here one name is wanted, such as 'ece(bins=15)'"
        )
    return make(spec.terms[0].call, kind)


def make(call: Call, kind: str) -> Any:
    """The instance that a call names, with every argument checked against the piece's fields."""
    piece = lookup(kind, call.name)
    known = {p.name: p for p in parameters(piece)}
    given: dict[str, Any] = {}
    for name, value in call.args:
        if name not in known:
            if not known:
                raise SpecError(f"{call.name} takes no arguments, but {name!r} was given")
            raise SpecError(f"{call.name} has no argument {name!r}{nearest(name, known)}")
        given[name] = _coerce(value, known[name].type, f"{call.name}({name}=...)", kind)
    missing = [p.name for p in known.values() if p.required and p.name not in given]
    if missing:
        raise SpecError(f"{call.name} needs {', '.join(missing)}; write {call.name}({missing[0]}=...)")
    try:
        return piece(**given)
    except CalibrantError:
        raise
    except (TypeError, ValueError) as error:
        raise SpecError(f"{call}: {error}") from None


def canonical(piece: Any) -> str:
    """The one printed form of an instance: every parameter, in the order of its fields."""
    values = [(p, getattr(piece, p.name)) for p in parameters(type(piece))]
    shown = [f"{p.name}={show_value(value)}" for p, value in values if p.is_shown(value)]
    return f"{name_of(piece)}({', '.join(shown)})" if shown else name_of(piece)


def join_terms(terms: typing.Iterable[tuple[float, str]]) -> str:
    """`ce - 0.1*entropy` from (1, 'ce') and (-0.1, 'entropy')."""
    text = ""
    for factor, shown in terms:
        size = shown if abs(factor) == 1.0 else f"{show_value(abs(factor))}*{shown}"
        negative = factor < 0
        text += (" - " if negative else " + ") + size if text else ("-" if negative else "") + size
    return text


def show_value(value: Any) -> str:
    """A value as it is written in a spec: strings in double quotes, whole floats without a trailing zero."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\u2028", "\\u2028").replace("\x7f", "\\x7f")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(show_value(v) for v in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, Call | Spec):
        return str(value)
    return canonical(value)


def split_specs(text: str) -> list[str]:
    """Split `ece(bins=15),nll` at the commas outside brackets and quotes; white space is normalised."""
    return [part for part in split_at(text, ",") if part]


def split_at(text: str, mark: str) -> list[str]:
    """What stands between the marks outside brackets and quotes, empty parts too; white space is normalised."""
    parts, depth, quote, current = [], 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        if char == mark and depth <= 0 and not quote:
            parts.append(current)
            current = ""
        else:
            current += char
    parts.append(current)
    return [" ".join(part.split()) for part in parts]


def _terms(node: ast.expr, sign: float, source: str) -> typing.Iterator[Term]:
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            yield from _terms(left, sign, source)
            yield from _terms(right, sign if isinstance(op, ast.Add) else -sign, source)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand) if not isinstance(
            operand, ast.Constant
        ):
            yield from _terms(operand, sign if isinstance(op, ast.UAdd) else -sign, source)
        case ast.BinOp(left=factor, op=ast.Mult(), right=call):
            if isinstance(call, ast.Constant | ast.UnaryOp) and not isinstance(
                factor, ast.Constant | ast.UnaryOp
            ):
                factor, call = call, factor
            number = _literal(factor, source)
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise SpecError(f"in {_short(source)} the factor of {ast.unparse(call)} must be a number")
            yield Term(sign * float(number), _call(call, source))
        case _:
            yield Term(sign, _call(node, source))


def _call(node: ast.expr, source: str) -> Call:
    match node:
        case ast.Name(id=name):
            return Call(name)
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            given: list[tuple[str, Value]] = []
            for keyword in keywords:
                if keyword.arg is None:
                    raise SpecError(f"in {_short(source)}, {name} is given '**', which a spec does not have")
                if keyword.arg in dict(given):
                    raise SpecError(f"in {_short(source)}, {name} is given {keyword.arg!r} twice")
                given.append((keyword.arg, _literal(keyword.value, source)))
            return Call(name, tuple(given))
        case ast.Call(func=ast.Name(id=name), args=args) if args:
            raise SpecError(
                f"in {_short(source)}, name the arguments of {name}: {name}(NAME={ast.unparse(args[0])})"
            )
    raise SpecError(
        f"in {_short(source)}, '{ast.unparse(node)}' is no name or call; a spec looks like 'ece(bins=15)'"
    )


def _literal(node: ast.expr, source: str) -> Value:
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
            if isinstance(value, float) and not math.isfinite(value):
                raise SpecError(f"in {_short(source)} a number is infinite")
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=ast.Constant(value=bool() as value)):
            raise SpecError(f"in {_short(source)}, {type(op).__name__} {value} is no number")
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd() as op, operand=ast.Constant(value=int() | float()) as number
        ):
            value = _literal(number, source)
            return -value if isinstance(op, ast.USub) else value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            values = tuple(_literal(element, source) for element in elements)
            if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
                raise SpecError(f"in {_short(source)}, '{ast.unparse(node)}' must hold numbers only")
            return values
        case ast.Name() | ast.Call():
            return _call(node, source)
    raise SpecError(
        f"in {_short(source)}, '{ast.unparse(node)}' is no number, list of numbers, string, True, False, None or spec"
    )


def _coerce(value: Value, hint: Any, where: str, kind: str) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) is not typing.Literal else ()
    if typing.get_origin(hint) is tuple:
        if isinstance(value, tuple):
            return tuple(_coerce(item, options[0], where, kind) for item in value)
    elif options:  # a union such as float | None
        for option in options:
            try:
                return _coerce(value, option, where, kind)
            except SpecError:
                continue
    elif typing.get_origin(hint) is typing.Literal:
        if value in typing.get_args(hint) and type(value) in {type(a) for a in typing.get_args(hint)}:
            return value
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
    elif hint in (bool, str):
        if isinstance(value, hint):
            return value
    elif hint is type(None):
        if value is None:
            return None
    elif isinstance(value, Call):
        made = make(value, kind)
        if not isinstance(hint, type) or isinstance(made, hint):
            return made
    raise SpecError(f"{where} must be {type_name(hint)}, not {show_value(value)}")


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= 80 else shown[:77] + "...")
