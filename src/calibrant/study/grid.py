"""From a study to its runs and cells: every combination of levels and seeds, with the hash that each is filed under."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from calibrant.core.errors import CalibrantError, SpecError, nearest
from calibrant.core.objective import objective
from calibrant.core.spec import build
from calibrant.study.plan import At, Scale, Settings, Study, Value
from calibrant.train.recipe import recipe
from calibrant.train.run import Run, changed, to_toml

SCHEMA = 1
"""Version of what a cell holds; part of its hash, so that an older result is not taken for a newer."""


@dataclass(frozen=True)
class Point:
    """One run with its place in the grid."""

    at: At
    seed: int
    run: Run

    @property
    def label(self) -> str:
        """`cifar10 focal, seed 3`."""
        return f"{' '.join(level for _, level in self.at)}, seed {self.seed}"


@dataclass(frozen=True)
class Cell:
    """One run after one calibrator: what one file of results holds."""

    point: Point
    calibrator: str
    config: str

    @cached_property
    def key(self) -> str:
        """The hash of the canonical configuration: sixteen hexadecimal digits, and the name of the file."""
        return hashlib.sha256(self.config.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Grid:
    """A study at one scale with its seeds and settings."""

    study: Study
    scale: Scale
    seeds: tuple[int, ...]
    settings: Mapping[str, str]
    points: tuple[Point, ...]

    @property
    def as_published(self) -> bool:
        """Whether this is the scale of the document, with nothing set otherwise."""
        return self.scale.paper and not self.settings

    @property
    def statement(self) -> str:
        """What has to be said about the scale wherever results are shown."""
        own = "the document's own scale" if self.scale.paper else "not the document's scale"
        told = [own if self.study.document else "", self.scale.note]
        own = ": ".join(text for text in told if text)
        set_ = "".join(f", {key}={value}" for key, value in self.settings.items())
        return f"{self.scale.name} ({own}){set_}"

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every run after every calibrator, in the order of the grid."""
        specs, metrics = self.study.calibrators, self.study.metrics
        return tuple(
            Cell(point, name, configuration(point.run, spec, metrics))
            for point in self.points
            for name, spec in specs.items()
        )

    def places(self) -> Iterator[At]:
        """Every combination of levels, seeds aside."""
        yield from dict.fromkeys(point.at for point in self.points)


def configuration(run: Run, calibrator: str, metrics: tuple[str, ...]) -> str:
    """The canonical JSON of everything that decides a cell."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "run": tomllib.loads(to_toml(run)),
        "calibrator": calibrator,
        "metrics": list(metrics),
    }
    return json.dumps(document, sort_keys=True, ensure_ascii=False)


def grid(study: Study, settings: Mapping[str, str] | None = None) -> Grid:
    """The grid at `scale` (the first in the file, unless it is set) with `seeds`; other settings are for every run."""
    given = dict(settings or {})
    name = given.pop("scale", next(iter(study.scales)))
    if name not in study.scales:
        raise SpecError(f"{study.name} has no scale {name!r}{nearest(name, study.scales)}")
    scale = study.scales[name]
    seeds = _seeds(given.pop("seeds", str(scale.seeds)))
    axes = {axis.name for axis in study.axes}
    for key in given:
        if key in axes:
            raise SpecError(
                f"{key} is an axis of {study.name}, so that it cannot be set; write a study of your own"
            )
        if key == "seed":
            raise SpecError("a study has several seeds; write seeds=5")
    points = []
    levels = [[(axis.name, level) for level in axis.levels] for axis in study.axes]
    for at in itertools.product(*levels):
        try:
            plain = settled({**_merged(study, scale, at), **given})
        except CalibrantError as error:
            raise SpecError(f"{study.name}, {' '.join(level for _, level in at)}: {error}") from None
        points += [Point(at, seed, replace(plain, seed=seed)) for seed in seeds]
    _check_different(points)
    return Grid(study, scale, seeds, given, tuple(points))


def check(key: str, value: Value) -> None:
    """Refuse a setting that is wrong whatever stands beside it; what goes with what is seen in the whole run."""
    if key == "meta" and isinstance(value, str) and value.strip():
        build(value, "meta")
    elif key == "meta_objective" and isinstance(value, str) and value.strip():
        objective(value)
    else:
        settled({key: value})


def settled(settings: Settings) -> Run:
    """The run that settings come to, over those of `Run()`; `recipe` names one, and others are set over it."""
    texts = dict(settings)
    named = texts.pop("recipe", None)
    if named is not None and not isinstance(named, str):
        raise SpecError(f"recipe is the name of one, such as 'short', not {named!r}")
    run = Run() if named is None else Run(recipe=recipe(named))
    return changed(run, {key: _text(value) for key, value in texts.items()})


def _text(value: Value) -> str:
    """A value as it is typed after `--set`."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _merged(study: Study, scale: Scale, at: At) -> dict[str, Value]:
    """Base run, scale, levels (or what stands in for them) and [[where]], each over those before."""
    found = {**study.base, **scale.settings}
    for axis in study.axes:
        level = dict(at)[axis.name]
        found |= scale.levels[axis.name].get(level, axis.levels[level])
    for where in study.where:
        if all(dict(at)[name] in levels for name, levels in where.on.items()):
            found |= where.settings
    return found


def _seeds(text: str) -> tuple[int, ...]:
    """`5` is 0, 1, 2, 3, 4."""
    if not text.strip().isdigit() or int(text) < 1:
        raise SpecError(f"seeds={text!r} is not the number of seeds, such as seeds=5")
    return tuple(range(int(text)))


def _check_different(points: list[Point]) -> None:
    """Two places of a grid that are one run would be compared with each other as if they were two."""
    seen: dict[str, Point] = {}
    for point in points:
        other = seen.setdefault(point.run.id, point)
        if other is not point:
            raise SpecError(
                f"{other.label} and {point.label} are the same run; the levels of an axis have to differ"
            )
