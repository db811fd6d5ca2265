"""A study as frozen values: a question, a grid of runs, what is measured, what is claimed, and what was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Value = str | int | float | bool | list[int]
Settings = Mapping[str, Value]
"""Settings of a run by name, those of its recipe among them, as `calibrant train --set` knows them."""

At = tuple[tuple[str, str], ...]
"""A place in the grid: axis and level, in the order of the axes."""

SWING = "ece_swing"
"""The standard deviation of the steps of test ECE from an epoch to the next: a curve's unrest as one number."""


@dataclass(frozen=True)
class Axis:
    """What is varied: levels by name, each with the settings that it stands for."""

    name: str
    levels: Mapping[str, Settings]


@dataclass(frozen=True)
class Where:
    """Settings for the part of the grid where all named axes have one of these levels."""

    on: Mapping[str, tuple[str, ...]]
    settings: Settings


@dataclass(frozen=True)
class Scale:
    """How large: settings over the base run, stand-ins for levels, and whether it is the document's own scale."""

    name: str
    note: str
    paper: bool
    seeds: int
    settings: Settings
    levels: Mapping[str, Mapping[str, Settings]]


@dataclass(frozen=True)
class Quantity:
    """A number of a cell: a metric or a learned parameter by its canonical name, after a calibrator."""

    name: str
    calibrator: str

    def __str__(self) -> str:
        return f"{self.name} {'raw' if self.calibrator == 'raw' else 'after ' + self.calibrator}"


@dataclass(frozen=True)
class Comparison:
    """`ece after temperature: ce < label_smoothing`: a level against another, or against a number.

    `error raw: focal < ce + 0.01` has a margin: that focal is at most a point worse. `ece after temperature < ece raw:
    ce` compares two quantities of one level: `against` is the other.
    """

    quantity: Quantity
    axis: str
    left: str
    less: bool
    right: str | float
    margin: float
    against: Quantity
    on: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Claim:
    """A sentence and the comparisons that decide it: all of them, or most."""

    id: str
    says: str
    judge: tuple[Comparison, ...]
    need: Literal["all", "most"]
    note: str


@dataclass(frozen=True)
class Published:
    """A row of a published table, as fractions: mean and standard deviation (None where none is printed) by level."""

    place: str
    row: str
    quantity: Quantity
    at: Mapping[str, str]
    axis: str
    values: Mapping[str, tuple[float, float | None]]


@dataclass(frozen=True)
class Study:
    """One TOML file, read and checked; `reference` is the level that the arrows of its tables compare with."""

    name: str
    text: str
    question: str
    document: str
    base: Settings
    axes: tuple[Axis, ...]
    where: tuple[Where, ...]
    scales: Mapping[str, Scale]
    calibrators: Mapping[str, str]
    metrics: tuple[str, ...]
    reference: str | None
    claims: tuple[Claim, ...]
    published: tuple[Published, ...]

    def axis_of(self, level: str) -> Axis:
        """The axis that has a level; levels of different axes have different names."""
        return next(axis for axis in self.axes if level in axis.levels)

    def columns(self) -> Axis:
        """The axis that lies across the tables: that of the reference, else the last."""
        return self.axes[-1] if self.reference is None else self.axis_of(self.reference)
