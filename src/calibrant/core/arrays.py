"""The door: what was given becomes arrays of one kind, or is refused with a remedy.

Nothing is repaired here: an array is what its name says, or an error names the first row at fault, the
number of such rows and what to do. Rows are counted from 0, as in numpy. Memory is shared wherever torch
can share it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from calibrant.core.place import Place, Tally, show

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

RESERVED = "calibrant"
"""The key of a file's meta that belongs to us: schema version and hash."""


def as_floats(value: Any, name: str, ndim: int, place: Place) -> Tensor:
    """A floating-point tensor that shares memory with what was given wherever torch can do that."""
    tensor = _as_tensor(value, name, place, lists_are_floats=True)
    if not tensor.is_floating_point():
        kind = str(tensor.dtype).removeprefix("torch.")
        place.refuse(
            f"{name} is {kind}, and floating-point numbers are wanted; write {name}.astype('float32')"
        )
    if tensor.dtype not in FLOATS:
        place.refuse(f"{name} is {tensor.dtype}, and 16, 32 or 64 bit floats are wanted")
    if tensor.ndim != ndim:
        _refuse_shape(tuple(tensor.shape), name, ndim, place)
    return tensor


def as_classes(value: Any, name: str, rows: int, classes: int, place: Place) -> Tensor:
    """One class number in 0..K-1 per row, as int64."""
    tensor = _as_tensor(value, name, place)
    if tensor.ndim == 2 and tensor.shape[1] == classes:
        place.refuse(f"{name} has shape {tuple(tensor.shape)}, which looks one-hot; write {name}.argmax(1)")
    if tensor.ndim != 1:
        place.refuse(
            f"{name} has shape {tuple(tensor.shape)}, and shape [N] is wanted; write {name}.reshape(-1)"
        )
    if tensor.dtype == torch.bool:
        place.refuse(
            f"{name} is bool, and class numbers 0..{classes - 1} are wanted; write {name}.astype(int)"
        )
    same_length(tensor, name, rows, place)
    if tensor.is_floating_point() or tensor.is_complex():
        _refuse_float_classes(tensor, name, classes, place)
    tensor = tensor.to(torch.int64)
    wrong = Tally()
    wrong.add((tensor < 0) | (tensor >= classes))
    if wrong.count:
        found = int(tensor[wrong.first])
        hint = "leave out rows without a label" if found < 0 else "count the classes from 0"
        place.refuse(f"{name} of {wrong.show(place)} is {found}, outside 0..{classes - 1}; {hint}")
    return tensor


def as_correct(value: Any, rows: int, place: Place) -> Tensor:
    """Whether each prediction was right: bool, from bool or 0 and 1."""
    tensor = _as_tensor(value, "correct", place)
    if tensor.ndim != 1:
        _refuse_shape(tuple(tensor.shape), "correct", 1, place)
    same_length(tensor, "correct", rows, place)
    if tensor.is_floating_point() or tensor.is_complex():
        place.refuse("correct holds floats, and 0 and 1 or bool are wanted; write correct.astype(int)")
    if tensor.dtype != torch.bool:
        wrong = Tally()
        wrong.add((tensor != 0) & (tensor != 1))
        if wrong.count:
            place.refuse(
                f"correct of {wrong.show(place)} is {int(tensor[wrong.first])}; it is 0 or 1 for each row"
            )
    return tensor.to(torch.bool)


def as_confidence(value: Any, name: str, rows: int | None, place: Place) -> Tensor:
    """One confidence in [0, 1] per row."""
    tensor = as_floats(value, name, 1, place)
    if rows is not None:
        same_length(tensor, name, rows, place)
    if not len(tensor):
        place.refuse("there are no rows; at least one is needed")
    wrong = Tally()
    wrong.add(~((tensor >= 0) & (tensor <= 1)))
    if wrong.count:
        found = float(tensor[wrong.first])
        place.refuse(
            f"{name} of {wrong.show(place)} is {found:.9g}, outside [0, 1]; give probabilities, not percent"
        )
    return tensor


def as_ids(value: Any, rows: int, place: Place) -> np.ndarray[Any, Any]:
    """One different integer or text per row: int64, or unicode of the width that is needed."""
    array = _as_numpy(value, "ids", place)
    if array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        found = f"{array.dtype} of shape {array.shape}"
        place.refuse(
            f"ids is {found}, and integers or texts of shape [N] are wanted; convert it with ids.astype(str)"
        )
    same_length(array, "ids", rows, place)
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        place.refuse("ids has integers of more than 63 bits; give them as texts, ids.astype(str)")
    try:
        items = array.tolist()
    except ValueError:
        place.refuse("ids has characters that are not unicode, so the data is damaged; write it again")
    kind = f"<U{max(map(len, items), default=0) or 1}" if array.dtype.kind == "U" else "<i8"
    array = array.astype(kind, copy=False)
    if len(set(items)) != rows:
        seen: set[Any] = set()
        for row, item in enumerate(items):
            if item in seen:
                place.refuse(
                    f"the id {show(item)!r} of {place.row(row)} was there before; give each row its own id"
                )
            seen.add(item)
    return array


def as_meta(meta: Mapping[str, Any] | None, place: Place) -> dict[str, Any]:
    """A private copy of JSON-able meta; what JSON would change silently is refused."""
    if meta is None:
        return {}
    if not isinstance(meta, Mapping):
        place.refuse(f"meta is {type(meta).__name__}, and a mapping such as {{'split': 'test'}} is wanted")
    if RESERVED in meta:
        place.refuse(f"meta has the key {RESERVED!r}, which is kept for the file's hash; choose another")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(meta), allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        place.refuse(
            f"meta cannot be written as JSON ({show(error, 80)}); use texts, numbers, lists and mappings"
        )
    if not _text_keys(meta):
        place.refuse("meta has a key that is no text; JSON knows only text keys, so write str(key)")
    return copy


def same_length(values: Any, name: str, rows: int, place: Place) -> None:
    """Refuse arrays that describe different numbers of rows."""
    if len(values) != rows:
        count = f"{len(values)} row{'s' * (len(values) != 1)}"
        place.refuse(f"{name} has {count} where {rows} are wanted; give the same samples in all arrays")


def _as_tensor(value: Any, name: str, place: Place, *, lists_are_floats: bool = False) -> Tensor:
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized:
            place.refuse(
                f"{name} is a {value.layout} tensor, and a dense one is wanted; write {name}.to_dense()"
            )
        return value.detach()
    array = _as_numpy(value, name, place)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        found = "text" if array.dtype.kind in "USO" else str(array.dtype)
        hint = f"write {name}.astype('float32')" if lists_are_floats else "give the column of the true class"
        place.refuse(f"{name} holds {found}, and numbers are wanted; {hint}")
    if lists_are_floats and not isinstance(value, np.ndarray) and array.dtype.kind in "iu":
        array = array.astype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size and int(array.max()) > 2**63 - 1:
        place.refuse(f"{name} has {int(array.max())}, which is too large; class numbers count from 0")
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    native = array.dtype.newbyteorder("=")
    if array.dtype != native:
        array = array.astype(native)
    if not (array.flags.writeable and array.flags.aligned) or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch can share none of these
    return torch.from_numpy(array)


def _as_numpy(value: Any, name: str, place: Place) -> np.ndarray[Any, Any]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if value is None or isinstance(value, str | bytes | int | float | Mapping):
        place.refuse(f"{name} is {type(value).__name__}, and an array is wanted")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        place.refuse(f"{name} has rows of different lengths; give one number per row and class")
    return array.view(np.ndarray)


def _refuse_shape(shape: tuple[int, ...], name: str, ndim: int, place: Place) -> NoReturn:
    wanted = "[N, K]" if ndim == 2 else "[N]"
    hint = "give one row per sample"
    if ndim == 2 and len(shape) == 1:
        hint = "for one probability per row use Predictions.from_binary, for confidences TopLabel"
    elif len(shape) > ndim:
        hint = f"flatten it, for example with {name}.reshape({'-1, K' if ndim == 2 else '-1'})"
    place.refuse(f"{name} has shape {shape}, and shape {wanted} is wanted; {hint}")


def _refuse_float_classes(tensor: Tensor, name: str, classes: int, place: Place) -> NoReturn:
    wrong = Tally()
    wrong.add(tensor != tensor.round() if tensor.is_floating_point() else tensor == tensor)
    if wrong.count:
        found = f"{tensor[wrong.first].item():.6g}"
        wanted = f"a class number 0..{classes - 1} is wanted; mend it or leave the row out"
        place.refuse(f"{name} of {wrong.show(place)} is {found}, and {wanted}")
    kind = str(tensor.dtype).removeprefix("torch.")
    place.refuse(f"{name} is {kind}, and integers are wanted; write {name}.astype(int)")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _text_keys(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _text_keys(item) for key, item in value.items())
    return all(_text_keys(item) for item in value) if isinstance(value, list | tuple) else True
