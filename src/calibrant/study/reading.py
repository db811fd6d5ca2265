"""From a TOML to a study: every name is looked up before anything runs, and what is wrong is named with its line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from calibrant.core.chain import calibrator
from calibrant.core.errors import CalibrantError, InputError, SpecError, nearest
from calibrant.core.files import opened
from calibrant.core.place import Place
from calibrant.core.spec import canonical
from calibrant.metrics.evaluate import metric
from calibrant.study.grid import check
from calibrant.study.plan import Axis, Scale, Settings, Study, Value, Where
from calibrant.study.sentences import conditions, read_claim, read_published
from calibrant.study.source import Source, Table

SHIPPED = Path(__file__).parents[1] / "studies"
SCALES = ("tiny", "short", "full")
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


def shipped() -> list[str]:
    """The names of the studies that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(name: str | Path) -> Study:
    """A shipped study by its name, or one of your own by the path of its TOML file."""
    path = Path(name)
    if path.suffix != ".toml":
        if str(name) not in shipped():
            raise SpecError(
                f"no study {str(name)!r}{nearest(str(name), shipped())}; a file of your own ends in .toml"
            )
        path = SHIPPED / f"{name}.toml"
    place = Place(str(path))
    with opened(path, place, "one TOML file") as file:
        try:
            text = file.read().decode("utf-8")
        except UnicodeDecodeError:
            place.refuse("this is no UTF-8 text, and a study is one")
    return read(text, path.stem, str(path))


def read(text: str, name: str, source: str = "study.toml") -> Study:
    """A study from its text."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{source}: {name!r} cannot be the name of a study; use letters, digits, - and _")
    top = Source(text, source).table()
    question, document = top.take("question", str), top.take("document", str, "")
    base = _settings(top.table("run", required=True))
    axes = _axes(top.table("axes", required=True))
    _check_names(top, axes)
    calibrators = _calibrators(top.table("calibrators", required=True))
    metrics = _metrics(top)
    study = Study(
        name=name,
        text=text,
        question=question,
        document=document,
        base=base,
        axes=axes,
        where=tuple(_where(table, axes) for table in top.tables("where")),
        scales=_scales(top.table("scale", required=True), axes),
        calibrators=calibrators,
        metrics=metrics,
        reference=_reference(top, axes),
        claims=(),
        published=(),
    )
    claims = tuple(read_claim(table, study) for table in top.tables("claim"))
    for number, each in enumerate(claims):
        if each.id in [other.id for other in claims[:number]]:
            top.refuse(f"the claim {each.id!r} is there twice", "claim", number, "id")
    published = tuple(read_published(table, study) for table in top.tables("published"))
    top.done()
    return replace(study, claims=claims, published=published)


def _settings(table: Table) -> dict[str, Value]:
    """Settings of a run, each tried by itself, so that what is wrong is named where it stands."""
    found: dict[str, Value] = {}
    for key in table.names():
        value = table.values[key]
        if not _is_value(value):
            table.refuse(f"{key} is a text, a number, true or false, or a list of whole numbers", key)
        if key == "seed":
            table.refuse("a study names its seeds with 'seeds' in its scales, and no seed of a run", key)
        if key == "model" and isinstance(value, str) and ":" in value:
            table.refuse(
                f"model = {value!r} is code of your own, which a study does not load; register a network by name",
                key,
            )
        try:
            check(key, value)
        except CalibrantError as error:
            table.refuse(str(error), key)
        found[key] = value
    return found


def _is_value(value: Any) -> bool:
    return type(value) in (str, int, float, bool) or (
        type(value) is list and all(type(each) is int for each in value)
    )


def _axes(table: Table) -> tuple[Axis, ...]:
    axes = []
    for name in table.names():
        inner = table.table(name)
        if not inner.names():
            inner.refuse(f"the axis {name!r} has no levels; write a name and what it sets, such as ce = 'ce'")
        axes.append(Axis(name, {level: _level(inner, name, level) for level in inner.names()}))
    if not axes:
        table.refuse("a study varies something; write [axes.loss] and its levels below")
    return tuple(axes)


def _level(table: Table, axis: str, level: str) -> Settings:
    """`ce = "ce"` sets what the axis is named after; `a = {data = ..., model = ...}` sets several things."""
    if not _NAME.fullmatch(level):
        table.refuse(f"{level!r} cannot be the name of a level; use letters, digits, - and _", level)
    value = table.values[level]
    if type(value) is dict:
        return _settings(table.table(level))
    inner = Table(table.source, (*table.path, level), {axis: value})
    return _settings(inner)


def _check_names(top: Table, axes: tuple[Axis, ...]) -> None:
    """Levels are named in claims without their axis, so that a name belongs to one axis alone."""
    known = {"seed", "calibrator", "metric", "value", "scale", "study", "run", "cell", "predictions", "set"}
    seen: dict[str, str] = {}
    for axis in axes:
        if axis.name in known:
            top.refuse(f"an axis cannot be called {axis.name!r}, which results use", "axes", axis.name)
        for level in axis.levels:
            if level in seen:
                top.refuse(
                    f"{level!r} is a level of {seen[level]!r} too; name one of them otherwise",
                    "axes",
                    axis.name,
                    level,
                )
            seen[level] = axis.name


def _where(table: Table, axes: tuple[Axis, ...]) -> Where:
    on = conditions(table, axes, leave=("set",))
    if not on:
        table.refuse("[[where]] names the axes that it is for, such as data = 'svhn'")
    found = Where(on, _settings(table.table("set", required=True)))
    table.done()
    return found


def _scales(table: Table, axes: tuple[Axis, ...]) -> dict[str, Scale]:
    found = {}
    for name in table.names():
        if name not in SCALES:
            table.refuse(f"there is no scale {name!r}{nearest(name, SCALES)}", name)
        inner = table.table(name)
        seeds = inner.take("seeds", int)
        if seeds < 1:
            inner.refuse(f"seeds is the number of them, at least 1, not {seeds}", "seeds")
        note, paper = inner.take("note", str, ""), inner.take("paper", bool, False)
        if not paper and not note:
            inner.refuse(
                "a scale that is not the paper's says in a note what it is; write note = '...' or paper = true"
            )
        settings = _settings(inner.table("run"))
        levels = {}
        stands = inner.table("axes")
        for axis in axes:
            given = stands.table(axis.name)
            for level in given.names():
                if level not in axis.levels:
                    given.refuse(
                        f"the axis {axis.name!r} has no {level!r}{nearest(level, axis.levels)}", level
                    )
            levels[axis.name] = {level: _level(given, axis.name, level) for level in given.names()}
        stands.done()
        inner.done()
        found[name] = Scale(name, note, paper, seeds, settings, levels)
    if not found:
        table.refuse("a study has at least one scale; write [scale.tiny] and its seeds below")
    return found


def _calibrators(table: Table) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in table.names():
        if not _NAME.fullmatch(name):
            table.refuse(f"{name!r} cannot be the name of a calibrator; use letters, digits, - and _", name)
        try:
            spec = str(calibrator(table.take(name, str)))
        except CalibrantError as error:
            table.refuse(str(error), name)
        if (name == "raw") != (spec == "identity"):
            table.refuse("'raw' is the name of identity, and of nothing else", name)
        if spec in found.values():
            table.refuse(f"{spec} is there twice", name)
        found[name] = spec
    if not found:
        table.refuse("a study needs a calibrator; write raw = 'identity'")
    return found


def _metrics(top: Table) -> tuple[str, ...]:
    found: list[str] = []
    for text in top.texts("metrics"):
        try:
            spec = canonical(metric(text))
        except CalibrantError as error:
            top.refuse(str(error), "metrics")
        if spec in found:
            top.refuse(f"{spec} is there twice", "metrics")
        found.append(spec)
    if not found:
        top.refuse("metrics is empty; write metrics = ['error', 'nll', 'ece(bins=15)']", "metrics")
    return tuple(found)


def _reference(top: Table, axes: tuple[Axis, ...]) -> str | None:
    found = cast("str | None", top.take("reference", str, None))
    levels = [level for axis in axes for level in axis.levels]
    if found is not None and found not in levels:
        top.refuse(f"no axis has the level {found!r}{nearest(found, levels)}", "reference")
    return found
