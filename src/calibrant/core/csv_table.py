"""Predictions in a csv file: commas, a header, one row per sample; every number is read as float64.

A first line that begins with `#` holds meta and hash, where there are any; pandas (`comment="#"`), numpy
and R pass over it. Integers, texts and float64 come back as they were written; narrower floats come back as
float64.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from calibrant.core.content import Content, unpack
from calibrant.core.errors import InputError
from calibrant.core.files import atomic, opened
from calibrant.core.place import Place, show
from calibrant.core.tables import ROWS, columns, layout, pieces

Array = np.ndarray[Any, Any]

INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
PLAIN = re.compile(r"0|-?[1-9][0-9]{0,18}")
TRUTHS = {"0": False, "1": True, "false": False, "true": True}
WANTED = {
    "labels": "a whole number from 0 up",
    "predicted": "a whole number from 0 up",
    "correct": "0 or 1",
    "ids": "an integer or a text",
}


def read(path: Path, place: Place) -> Content:
    """The arrays; a cell that is none of what its column holds is refused with line and column."""
    with opened(path, place) as file:
        lines = 0
        while piece := file.read(1 << 20):  # a bound, so that one array can be made before the cells are read
            lines += piece.count(b"\n") + piece.count(b"\r")
        file.seek(0)
        try:
            with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
                return _read(text, lines + 1, place)
        except InputError:
            raise
        except UnicodeDecodeError:
            place.refuse("this is no text in utf-8; save it as csv with utf-8 encoding")
        except csv.Error as error:
            place.refuse(f"this is no csv file ({show(error, 80)}); save it with commas, in utf-8")


def write(path: Path, arrays: Mapping[str, Array], text: str) -> None:
    """Write the comment line with meta and hash, the header and the rows."""
    with atomic(path) as file:
        out = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        out.write(f"# {text}\n")
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(columns(arrays))
        for piece in pieces(arrays):
            cells = (column.astype(int) if column.dtype == np.bool_ else column for column in piece)
            rows.writerows(zip(*(column.tolist() for column in cells), strict=True))
        out.detach()


def _read(text: io.TextIOBase, bound: int, place: Place) -> Content:
    first, line = text.readline(), 1
    meta: dict[str, Any] = {}
    entry: dict[str, Any] | None = None
    if first.startswith("#"):
        if first[1:].strip().startswith("{"):
            meta, entry = unpack(first[1:], place)
        if entry is None:
            place.refuse("its first line is a comment that is not ours; leave it out")
        first, line = text.readline(), 2
    reader = csv.reader(chain([first], text), strict=True)
    header = [name.strip() for name in next(reader, [])]
    other = next((mark for mark in ";\t|" if len(header) == 1 and mark in header[0]), None)
    if other is not None:
        place.refuse(f"its cells are separated by {other!r}; save it with commas")
    plan = layout(header, place)
    for own in ("logits", "probs"):
        if own in plan and header[plan[own][0]] == own:
            place.refuse(
                f"column {own} would hold lists, which csv cannot; write {own[:-1]}_0, {own[:-1]}_1 and so on"
            )
    where = Place(place.source, line + reader.line_num)
    found = {own: np.empty((bound, len(positions))) for own, positions in plan.items() if own not in WANTED}
    listed: dict[str, list[str]] = {own: [] for own in plan if own in WANTED}
    count = 0
    while block := list(islice(reader, ROWS)):
        block = _whole(block, len(header), count, reader, where)
        for own, positions in plan.items():
            if own in listed:
                listed[own] += [row[positions[0]] for row in block]
            else:
                found[own][count : count + len(block)] = _floats(block, positions, header, count, where)
        count += len(block)
    if not count:
        place.refuse("there are no rows; at least one is needed below the header")
    arrays = {own: a[:count] if own in ("logits", "probs") else a[:count, 0] for own, a in found.items()}
    for own, cells in listed.items():
        name = header[plan[own][0]]
        arrays[own] = _listed(own, name, cells, where, texts=entry is not None and entry.get("ids") == "text")
    return Content(arrays, meta, entry, where.first_line)


def _whole(block: list[list[str]], width: int, start: int, reader: Any, place: Place) -> list[list[str]]:
    """The rows, each with as many cells as the header; empty lines may stand at the end only."""
    for index, row in enumerate(block):
        if len(row) == width:
            continue
        if not row and not any(chain.from_iterable(chain(block[index:], reader))):
            return block[:index]
        found = f"has {len(row)} cell{'s' * (len(row) != 1)}" if row else "is empty"
        place.refuse(f"{place.row(start + index)} {found} where the header has {width} cells; mend the row")
    return block


def _floats(
    block: list[list[str]], positions: Sequence[int], header: list[str], start: int, place: Place
) -> Array:
    low, high = positions[0], positions[-1] + 1
    together = list(positions) == list(range(low, high))
    cells = [row[low:high] if together else [row[i] for i in positions] for row in block]
    try:
        if "_" in "".join(chain.from_iterable(cells)):  # Python reads 1_000, and nothing else does
            raise ValueError
        return np.array(cells, dtype=np.float64)
    except ValueError:
        for index, row in enumerate(cells):
            for k, cell in enumerate(row):
                if not _is_float(cell):
                    _refuse_cell(cell, header[positions[k]], start + index, "a number", place)
        raise


def _is_float(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _listed(own: str, name: str, cells: list[str], place: Place, *, texts: bool) -> Array:
    if own == "ids":
        if not texts and all(map(PLAIN.fullmatch, cells)):
            numbers = [int(cell) for cell in cells]
            if min(numbers) >= -(2**63) and max(numbers) < 2**63:
                return np.array(numbers, dtype=np.int64)
        return np.array(cells)
    if own == "correct":
        answers = [TRUTHS.get(cell.strip().lower()) for cell in cells]
        _first_fault(own, name, cells, (answer is not None for answer in answers), place)
        return np.array(answers, dtype=np.bool_)
    _first_fault(own, name, cells, (INTEGER.fullmatch(cell.strip()) for cell in cells), place)
    return np.array([int(cell) for cell in cells], dtype=np.int64)


def _first_fault(own: str, name: str, cells: list[str], fine: Iterable[Any], place: Place) -> None:
    for row, good in enumerate(fine):
        if not good:
            _refuse_cell(cells[row], name, row, WANTED[own], place)


def _refuse_cell(cell: str, name: str, row: int, wanted: str, place: Place) -> NoReturn:
    found = f"has {show(cell)!r}" if cell.strip() else "is empty"
    where = f"column {show(name)} of {place.row(row)}"
    place.refuse(f"{where} {found}, and {wanted} is wanted; mend the cell or leave the row out")
