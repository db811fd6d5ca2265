"""Verdicts: whether a claim holds, fails or stays undecided, with n, difference and interval of every comparison.

A comparison holds if its paired difference has the claimed sign and is significant at 0.05 after Holm's correction over
all comparisons of the study; it fails if it is significant the other way; else it is undecided. A claim about all
holds if all hold, and fails if one fails; a claim about most goes by more than half.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

from calibrant.study.grid import Grid
from calibrant.study.plan import At, Claim, Comparison, Quantity
from calibrant.study.statistics import LEVEL, Difference, holm, paired
from calibrant.study.store import Record

Verdict = Literal["holds", "fails", "undecided"]
Numbers = Mapping[tuple[At, str], Mapping[int, Record]]
"""The records at a place after a calibrator, by seed."""


def by_place(grid: Grid, records: Mapping[str, Record]) -> Numbers:
    """The records that are there, in the order of the grid."""
    found: dict[tuple[At, str], dict[int, Record]] = {}
    for cell in grid.cells:
        if cell.key in records:
            found.setdefault((cell.point.at, cell.calibrator), {})[cell.point.seed] = records[cell.key]
    return found


def values(numbers: Numbers, at: At, quantity: Quantity) -> dict[int, float]:
    """A quantity at a place by seed, without what has no value."""
    held = numbers.get((at, quantity.calibrator), {})
    found = {seed: record.values.get(quantity.name) for seed, record in held.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def judged(grid: Grid, numbers: Numbers) -> list[dict[str, Any]]:
    """Every claim of the study with its verdict and its comparisons."""
    rows = [list(_compared(grid, claim, numbers)) for claim in grid.study.claims]
    ps = [row["p"] for row in itertools.chain(*rows) if row["p"] is not None]
    adjusted = iter(holm(ps))
    for row in itertools.chain(*rows):
        row["p_holm"] = None if row["p"] is None else next(adjusted)
        row["verdict"] = _verdict(row)
    return [
        {
            "id": claim.id,
            "says": claim.says,
            "note": claim.note,
            "need": claim.need,
            "verdict": _together(claim, [row["verdict"] for row in own]),
            "comparisons": own,
        }
        for claim, own in zip(grid.study.claims, rows, strict=True)
    ]


def _compared(grid: Grid, claim: Claim, numbers: Numbers) -> Iterator[dict[str, Any]]:
    """Each comparison of a claim, at every place that the other axes have."""
    for each in claim.judge:
        for rest in dict.fromkeys(_rest(at, each.axis) for at in grid.places()):
            if all(dict(rest)[name] in levels for name, levels in each.on.items()):
                found = _difference(grid, each, rest, numbers)
                yield {
                    "at": dict(rest),
                    "quantity": each.quantity.name,
                    "calibrator": each.quantity.calibrator,
                    "left": each.left,
                    "sign": "<" if each.less else ">",
                    "right": each.right,
                    "margin": each.margin,
                    "against": {"quantity": each.against.name, "calibrator": each.against.calibrator},
                    **asdict(found),
                    "interval": None if found.interval is None else list(found.interval),
                }


def _rest(at: At, axis: str) -> At:
    return tuple((name, level) for name, level in at if name != axis)


def _difference(grid: Grid, each: Comparison, rest: At, numbers: Numbers) -> Difference:
    """Left minus right and its margin, over the seeds that both have."""
    left = values(numbers, _place(grid, rest, each.axis, each.left), each.quantity)
    if isinstance(each.right, str):
        right = values(numbers, _place(grid, rest, each.axis, each.right), each.against)
        right = {seed: value + each.margin for seed, value in right.items()}
    else:
        right = dict.fromkeys(left, each.right)
    seeds = sorted(set(left) & set(right))
    return paired([left[seed] for seed in seeds], [right[seed] for seed in seeds])


def _place(grid: Grid, rest: At, axis: str, level: str) -> At:
    known = {**dict(rest), axis: level}
    return tuple((each.name, known[each.name]) for each in grid.study.axes)


def _verdict(row: Mapping[str, Any]) -> Verdict:
    if row["p_holm"] is None or row["p_holm"] >= LEVEL:
        return "undecided"
    return "holds" if (row["difference"] < 0) == (row["sign"] == "<") else "fails"


def _together(claim: Claim, verdicts: list[Verdict]) -> Verdict:
    """All: none may fail. Most: more than half, and it cannot be most any more once half have failed."""
    hold, fail, many = verdicts.count("holds"), verdicts.count("fails"), len(verdicts)
    if claim.need == "most":
        return "holds" if 2 * hold > many else "fails" if 2 * fail >= many and fail else "undecided"
    return "fails" if fail else "holds" if hold == many else "undecided"
