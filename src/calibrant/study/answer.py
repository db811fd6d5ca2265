"""What a study says, as one JSON document: how it was run, its table, its claims, and published against measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from calibrant.core.contracts import Better
from calibrant.metrics.evaluate import metric
from calibrant.study.claims import Numbers, by_place, judged, values
from calibrant.study.grid import Grid
from calibrant.study.plan import SWING, At, Published, Quantity
from calibrant.study.sentences import parameters_of
from calibrant.study.statistics import LEVEL, Summary, summary, two_sample
from calibrant.study.store import Record

REACH = 2.0
"""Standard deviations of the difference within which a measured mean agrees with a published one."""


def answer(grid: Grid, records: Mapping[str, Record]) -> dict[str, Any]:
    """The document; the same bytes whenever the same cells are there."""
    numbers = by_place(grid, records)
    study = grid.study
    return {
        "study": study.name,
        "question": study.question,
        "document": study.document,
        "scale": grid.scale.name,
        "as_published": grid.as_published,
        "statement": grid.statement,
        "seeds": list(grid.seeds),
        "axes": {axis.name: list(axis.levels) for axis in study.axes},
        "columns": study.columns().name,
        "reference": study.reference,
        "calibrators": dict(study.calibrators),
        "cells": {"total": len(grid.cells), "failed": sum(r.error is not None for r in records.values())},
        "failures": [
            {
                "cell": cell.key,
                "at": dict(cell.point.at),
                "seed": cell.point.seed,
                "calibrator": cell.calibrator,
            }
            | {"error": records[cell.key].error}
            for cell in grid.cells
            if cell.key in records and records[cell.key].error is not None
        ],
        "notes": _notes(grid, records),
        "table": list(_table(grid, numbers)),
        "claims": judged(grid, numbers),
        "published": [row for each in study.published for row in _against(grid, each, numbers)],
    }


def quantities(grid: Grid) -> list[Quantity]:
    """Everything that a cell may hold, metrics first, in the order of the calibrators."""
    found = [Quantity(name, each) for name in grid.study.metrics for each in grid.study.calibrators]
    for each, spec in grid.study.calibrators.items():
        found += [Quantity(name, each) for name in sorted(parameters_of(spec))]
        found += [Quantity(SWING, each)] if each == "raw" else []
    return found


def unit_of(name: str) -> tuple[str, Better | None]:
    """Percent or nothing, and which way is better; a learned number is neither better nor worse."""
    if name == SWING:
        return "%", "lower"
    if not _is_metric(name):
        return "", None
    made = metric(name)
    return made.unit, made.better


def _is_metric(name: str) -> bool:
    try:
        metric(name)
    except ValueError:
        return False
    return True


def _table(grid: Grid, numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Mean and standard deviation of every quantity at every place; an arrow where a reference is to compare with."""
    asked = {each.quantity for claim in grid.study.claims for each in claim.judge}
    asked |= {row.quantity for row in grid.study.published}
    for quantity in quantities(grid):
        if quantity.name not in grid.study.metrics and quantity not in asked:
            continue  # what a calibrator has learned is shown where a claim or a paper speaks of it
        for at in grid.places():
            found = list(values(numbers, at, quantity).values())
            if found:
                own = summary(found)
                yield {
                    "at": dict(at),
                    "calibrator": quantity.calibrator,
                    "quantity": quantity.name,
                    "unit": unit_of(quantity.name)[0],
                    "n": own.n,
                    "mean": own.mean,
                    "sd": own.sd,
                    "arrow": _arrow(grid, at, quantity, numbers),
                }


def _arrow(grid: Grid, at: At, quantity: Quantity, numbers: Numbers) -> str:
    """Above or below the reference: filled where a two-sample t-test at 0.05 says so, hollow where it does not."""
    reference, axis = grid.study.reference, grid.study.columns().name
    if reference is None or dict(at)[axis] == reference:
        return ""
    other = tuple((name, reference if name == axis else level) for name, level in at)
    own, base = (list(values(numbers, place, quantity).values()) for place in (at, other))
    p = two_sample(own, base) if own and base else None
    if p is None:
        return ""
    higher = math.fsum(own) / len(own) > math.fsum(base) / len(base)
    return ("▲" if higher else "▼") if p < LEVEL else ("△" if higher else "▽")


def _against(grid: Grid, row: Published, numbers: Numbers) -> Iterator[dict[str, Any]]:
    """A published row, number by number, beside what was measured."""
    for level, (mean, sd) in row.values.items():
        known = {**row.at, row.axis: level}
        at = tuple((axis.name, known.get(axis.name, next(iter(axis.levels)))) for axis in grid.study.axes)
        found = list(values(numbers, at, row.quantity).values())
        own = summary(found) if found else None
        unit, better = unit_of(row.quantity.name)
        yield {
            "place": row.place,
            "row": row.row,
            "at": dict(at),
            "quantity": row.quantity.name,
            "calibrator": row.quantity.calibrator,
            "unit": unit,
            "published": mean,
            "published_sd": sd,
            "measured": None if own is None else own.mean,
            "sd": None if own is None else own.sd,
            "n": 0 if own is None else own.n,
            "verdict": "not measured" if own is None else _agrees(own, mean, sd, better),
        }


def _agrees(own: Summary, mean: float, sd: float | None, better: Better | None) -> str:
    """`within` two standard deviations of the difference, made of both papers' own; else which way it lies."""
    if own.sd is None:
        return "one seed"
    if abs(own.mean - mean) <= REACH * math.hypot(own.sd, sd or 0.0):
        return "within"
    if better is None:
        return "above" if own.mean > mean else "below"
    gap = abs(own.mean) - abs(mean) if better == "zero" else own.mean - mean
    return "better" if (gap > 0) == (better == "higher") else "worse"


def _notes(grid: Grid, records: Mapping[str, Record]) -> list[str]:
    """What calibrators warned of and why metrics have no value, each once, with how many cells it concerns."""
    counts: dict[str, int] = {}
    for cell in grid.cells:
        record = records.get(cell.key)
        if record is not None:
            told = [f"{cell.calibrator}: {note}" for note in record.notes]
            told += [f"{name} after {cell.calibrator}: {why}" for name, why in record.reasons.items()]
            for text in told:
                counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({many} {'cell' if many == 1 else 'cells'})" for text, many in counts.items()]
