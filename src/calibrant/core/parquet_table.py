"""Predictions in a parquet file, by pyarrow, which is installed on request."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.core.arrays import RESERVED
from calibrant.core.content import Content, unpack
from calibrant.core.errors import InputError
from calibrant.core.files import atomic, opened
from calibrant.core.place import Place, show
from calibrant.core.tables import ROWS, columns, layout, pieces

Array = np.ndarray[Any, Any]

KEY = RESERVED.encode()
FIELD_ID = b"PARQUET:field_id"
MARK = 0xCA11B
"""The field id of our columns. The footer has no checksum: where this stands, our meta must stand too."""


def read(path: Path, place: Place) -> Content:
    """The arrays, filled batch by batch: no second copy of the table is made."""
    arrow, parquet = _pyarrow(place)
    with opened(path, place) as file:
        try:
            table = parquet.ParquetFile(file, page_checksum_verification=True)
            return _read(table, arrow, place)
        except InputError:
            raise
        except (arrow.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError):
            place.refuse("this is no parquet file, or a damaged one; write it again")


def write(path: Path, arrays: Mapping[str, Array], text: str) -> None:
    """Write `logit_0..`, `label` and what else there is, with meta and hash in the footer."""
    arrow, parquet = _pyarrow(Place(str(path)))
    header, schema = columns(arrays), None
    with atomic(path) as file:
        writer = None
        for piece in pieces(arrays):
            made = [arrow.array(column) for column in piece]
            if writer is None:
                mark = {FIELD_ID: str(MARK).encode()}
                named = zip(header, made, strict=True)
                fields = [arrow.field(name, column.type, metadata=mark) for name, column in named]
                schema = arrow.schema(fields, metadata={KEY: text.encode()})
                writer = parquet.ParquetWriter(file, schema, write_page_checksum=True)
            writer.write_table(arrow.Table.from_arrays(made, schema=schema))
        if writer is not None:
            writer.close()


def _read(table: Any, arrow: Any, place: Place) -> Content:
    schema, rows = table.schema_arrow, table.metadata.num_rows
    stored = schema.metadata or {}
    marks = {(field.metadata or {}).get(FIELD_ID) for field in schema}
    meta, entry = unpack(stored[KEY].decode(), place) if KEY in stored else ({}, None)
    if entry is None and str(MARK).encode() in marks:
        place.refuse("the file was changed or damaged, because its hash is gone; write it again")
    plan = layout(schema.names, place)
    arrays: dict[str, Any] = dict.fromkeys(plan)
    texts: list[str] = []
    wanted = [schema.names[position] for positions in plan.values() for position in positions]
    start = 0
    for batch in table.iter_batches(ROWS, columns=wanted):
        stop = start + batch.num_rows
        for own, positions in plan.items():
            for k, position in enumerate(positions):
                name = schema.names[position]
                column = batch.column(name)
                _refuse_nulls(column, name, start, place)
                if own == "ids" and not arrow.types.is_integer(column.type):
                    texts += _texts(column, name, arrow, place)
                    continue
                values = _lists(column, name, start, arrow, place) if own in ("logits", "probs") else None
                if values is None:
                    values = _numbers(column, name, place)[:, None]
                if arrays[own] is None:
                    width = values.shape[1] if len(positions) == 1 else len(positions)
                    many = len(positions) > 1
                    kinds = {schema.field(p).type.to_pandas_dtype() for p in positions} if many else set()
                    kind = np.result_type(*kinds) if len(kinds) > 1 and object not in kinds else values.dtype
                    arrays[own] = np.empty((rows, width), kind)
                if len(positions) == 1 and values.shape[1] != arrays[own].shape[1]:
                    found = f"{name} of {place.row(start)} has {values.shape[1]} numbers"
                    place.refuse(f"{found} where {arrays[own].shape[1]} are wanted; mend the row")
                arrays[own][start:stop, k : k + values.shape[1]] = values
        start = stop
    if texts:
        arrays["ids"] = np.array(texts)
    if start == 0:
        place.refuse("there are no rows; at least one is needed")
    wide = ("logits", "probs")
    shaped = {own: a if own in wide or a.ndim == 1 else a[:, 0] for own, a in arrays.items()}
    return Content(shaped, meta, entry)


def _refuse_nulls(column: Any, name: str, start: int, place: Place) -> None:
    if column.null_count:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        place.refuse(f"column {show(name)} is empty (null) in {place.row(row)}; fill it or leave the row out")


def _numbers(column: Any, name: str, place: Place) -> Array:
    values: Array = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "biuf":
        place.refuse(f"column {show(name)} holds {column.type}, and numbers are wanted; convert it")
    return values


def _lists(column: Any, name: str, start: int, arrow: Any, place: Place) -> Array | None:
    """A list column as [rows, K], or None for a plain one; every list has the same length."""
    kinds = arrow.types
    if not (
        kinds.is_list(column.type)
        or kinds.is_large_list(column.type)
        or kinds.is_fixed_size_list(column.type)
    ):
        return None
    lengths = np.diff(column.offsets.to_numpy()) if not kinds.is_fixed_size_list(column.type) else None
    flat = column.flatten()
    width = int(lengths[0]) if lengths is not None else int(column.type.list_size)
    if lengths is not None and (lengths != width).any():
        row = start + int(np.argmax(lengths != width))
        place.refuse(
            f"{name} of {place.row(row)} has {lengths[row - start]} numbers where {width} are wanted; mend the row"
        )
    if flat.null_count:
        row = start + int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False))) // width
        place.refuse(
            f"column {show(name)} has an empty (null) entry in {place.row(row)}; fill it or leave the row out"
        )
    return _numbers(flat, name, place).reshape(len(column), width)


def _texts(column: Any, name: str, arrow: Any, place: Place) -> list[str]:
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type)):
        place.refuse(f"column {show(name)} holds {column.type}, and integers or texts are wanted; convert it")
    found: list[str] = column.to_pylist()
    return found


def _pyarrow(place: Place) -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        place.refuse("parquet needs pyarrow, which is not installed; pip install 'calibrant[parquet]'")
