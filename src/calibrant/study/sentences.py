"""The small sentences of a study: what is claimed, and what was published, as the grid knows it.

ece after temperature: ce < label_smoothing, focal on cifar10
overconfidence raw: ce > 0
ece after temperature < ece raw: ce
"""

from __future__ import annotations

import re
from typing import Any

from calibrant.core.calibration import Calibrator
from calibrant.core.chain import calibrator
from calibrant.core.errors import CalibrantError, SpecError, nearest
from calibrant.core.spec import canonical
from calibrant.metrics.evaluate import metric
from calibrant.study.plan import SWING, Axis, Claim, Comparison, Published, Quantity, Study
from calibrant.study.source import Table

_WRITE = "write 'ece after temperature: ce < label_smoothing'"
_QUANTITY = re.compile(r"(?P<name>.+?)\s+(?:(?P<raw>raw)|after\s+(?P<after>\S+))")
_SIDES = re.compile(r"(?P<left>[^<>]+)(?P<sign>[<>])(?P<right>[^<>]+?)(?:\s+on\s+(?P<on>[^<>]+))?")
_MARGIN = re.compile(r"(?P<level>\S+) (?P<sign>[+-]) (?P<size>\d*\.?\d+)")


def read_claim(table: Table, study: Study) -> Claim:
    """One `[[claim]]`; its `judge` is a sentence or a list of them."""
    given = table.values.get("judge")
    judge = (table.take("judge", str),) if isinstance(given, str) else table.texts("judge")
    need = table.take("need", str, "all")
    if need not in ("all", "most"):
        table.refuse(f"need is 'all' or 'most' of the comparisons, not {need!r}", "need")
    comparisons: list[Comparison] = []
    for sentence in judge:
        try:
            comparisons += compared(sentence, study)
        except CalibrantError as error:
            table.refuse(str(error), "judge")
    if not comparisons:
        table.refuse(f"judge is empty; {_WRITE}", "judge")
    claim = Claim(
        table.take("id", str), table.take("says", str), tuple(comparisons), need, table.take("note", str, "")
    )
    table.done()
    return claim


def compared(sentence: str, study: Study) -> list[Comparison]:
    """Every pair of levels that a sentence compares."""
    head, colon, tail = sentence.rpartition(":")
    if colon and ("<" in head or ">" in head):
        return _before_and_after(head, tail, study)
    sides = _SIDES.fullmatch(tail.strip())
    if not colon or sides is None:
        raise SpecError(f"cannot read the claim {sentence!r}; {_WRITE}")
    quantity = quantity_of(head.strip(), study)
    lefts = [_level(text, study) for text in _listed(sides["left"])]
    rights = [_right(text, study) for text in _listed(sides["right"])]
    found = []
    for left in lefts:
        axis = study.axis_of(left)
        for right, margin in rights:
            if isinstance(right, str) and (right not in axis.levels or right == left):
                raise SpecError(f"{left!r} and {right!r} are not two levels of one axis")
            on = _parts(sides["on"], study, axis)
            found.append(
                Comparison(quantity, axis.name, left, sides["sign"] == "<", right, margin, quantity, on)
            )
    return found


def _before_and_after(head: str, tail: str, study: Study) -> list[Comparison]:
    """Two quantities at each of the levels."""
    less = "<" in head
    one, _, two = head.partition("<" if less else ">")
    quantity, against = quantity_of(one.strip(), study), quantity_of(two.strip(), study)
    listed, _, where = tail.partition(" on ")
    found = []
    for level in (_level(text, study) for text in _listed(listed)):
        axis = study.axis_of(level)
        on = _parts(where, study, axis)
        found.append(Comparison(quantity, axis.name, level, less, level, 0.0, against, on))
    return found


def quantity_of(text: str, study: Study) -> Quantity:
    """`ece raw` or `temperature after temperature`: a metric of the study, or a number that the calibrator learns."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise SpecError(f"{text!r} does not say of what; write 'ece raw' or 'ece after temperature'")
    name, after = found["name"], found["after"] or "raw"
    if after not in study.calibrators:
        raise SpecError(f"the study has no calibrator {after!r}{nearest(after, study.calibrators)}")
    named = [spec for spec in study.metrics if spec.partition("(")[0] == name]
    if len(named) == 1:
        return Quantity(named[0], after)
    if len(named) > 1:
        raise SpecError(f"{name!r} could be {' or '.join(named)}; write it out")
    learned = parameters_of(study.calibrators[after])
    if name in learned or (name == SWING and after == "raw"):
        return Quantity(name, after)
    if "(" in name:
        spec = canonical(metric(name))
        if spec in study.metrics:
            return Quantity(spec, after)
    known = {
        *(spec.partition("(")[0] for spec in study.metrics),
        *learned,
        *([SWING] if after == "raw" else []),
    }
    raise SpecError(f"the study does not measure {name!r} there{nearest(name, known)}")


def parameters_of(spec: str) -> set[str]:
    """The names under which a calibrator learns one number, such as its temperature."""
    made = calibrator(spec)
    if not isinstance(made, Calibrator) or not made.settled:
        return set()
    return {name for name, shape in made.shapes(3).items() if shape == ()}


def read_published(table: Table, study: Study) -> Published:
    """One `[[published]]`: a row of a table as it is printed, turned into fractions and errors."""
    try:
        quantity = quantity_of(table.take("quantity", str), study)
    except CalibrantError as error:
        table.refuse(str(error), "quantity")
    unit = table.take("unit", str, "")
    if unit not in ("", "%"):
        table.refuse(f"unit is '%' or nothing, not {unit!r}", "unit")
    complement = table.take("complement", bool, False)
    values = table.table("values", required=True)
    axis: Axis | None = None
    found = {}
    for level in values.names():
        known = {each for one in study.axes for each in one.levels}
        if level not in known:
            values.refuse(f"no axis has the level {level!r}{nearest(level, known)}", level)
        if axis is not None and level not in axis.levels:
            values.refuse(f"{level!r} is no level of the axis {axis.name!r}, as the others are", level)
        axis = study.axis_of(level)
        mean, sd = _printed(values, level)
        scale = 0.01 if unit else 1.0
        mean = 1 - scale * mean if complement else scale * mean
        found[level] = (mean, None if sd is None else scale * sd)
    if axis is None:
        table.refuse("values is empty; write values = { ce = [3.03, 0.16] }", "values")
    at = {name: levels[0] for name, levels in conditions(table.table("at"), study.axes).items()}
    for other in study.axes:
        if other is not axis and len(other.levels) > 1 and other.name not in at:
            table.refuse(f"at does not say which {other.name}; write at = {{ {other.name} = '...' }}", "at")
    row = Published(table.take("place", str), table.take("row", str), quantity, at, axis.name, found)
    table.done()
    return row


def _printed(values: Table, level: str) -> tuple[float, float | None]:
    """A mean, or `[mean, standard deviation]`."""
    given: Any = values.values[level]
    pair = given if type(given) is list else [given]
    if not 1 <= len(pair) <= 2 or not all(type(each) in (int, float) for each in pair):
        values.refuse(f"{level} is a number, or [mean, standard deviation], not {given!r}", level)
    return float(pair[0]), float(pair[1]) if len(pair) == 2 else None


def conditions(
    table: Table, axes: tuple[Axis, ...], leave: tuple[str, ...] = ()
) -> dict[str, tuple[str, ...]]:
    """`data = "svhn"` or `data = ["svhn", "cifar10"]` for some of the axes."""
    on: dict[str, tuple[str, ...]] = {}
    known = {axis.name: axis for axis in axes}
    for name in table.names():
        if name in leave:
            continue
        if name not in known:
            table.refuse(f"the grid has no axis {name!r}{nearest(name, known)}", name)
        levels = (table.take(name, str),) if isinstance(table.values[name], str) else table.texts(name)
        for level in levels:
            if level not in known[name].levels:
                table.refuse(f"the axis {name!r} has no {level!r}{nearest(level, known[name].levels)}", name)
        on[name] = levels
    return on


def _parts(text: str | None, study: Study, axis: Axis) -> dict[str, tuple[str, ...]]:
    """The part of the grid that `on cifar10, svhn` names: levels of axes other than the one compared."""
    found: dict[str, tuple[str, ...]] = {}
    for each in _listed(text or ""):
        level = _level(each, study)
        name = study.axis_of(level).name
        if name == axis.name:
            raise SpecError(f"{level!r} is a level of {name!r}, which is what is compared")
        found[name] = (*found.get(name, ()), level)
    return found


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _level(text: str, study: Study) -> str:
    known = [level for axis in study.axes for level in axis.levels]
    if text not in known:
        raise SpecError(f"the grid has no {text!r}{nearest(text, known)}")
    return text


def _right(text: str, study: Study) -> tuple[str | float, float]:
    """A number, or a level with the margin that stands after it."""
    try:
        return float(text), 0.0
    except ValueError:
        found = _MARGIN.fullmatch(text)
    if found is None:
        return _level(text, study), 0.0
    return _level(found["level"], study), float(found["sign"] + found["size"])
