"""The one door to predictions on disk: a format is chosen by the file's extension, never by its values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core import csv_table, npz, parquet_table
from calibrant.core.content import Content, digest, pack
from calibrant.core.place import Place, show

Array = np.ndarray[Any, Any]

EXTENSIONS = (".npz", ".parquet", ".csv")


def read(path: Path) -> Content:
    """The content of a file, with the arrays as they are stored and not yet checked for their values."""
    place = Place(str(path))
    if path.is_dir():
        run = path / "predictions" / "test.npz"
        hint = f"did you mean {run}" if run.is_file() else "give one file: .npz, .parquet or .csv"
        place.refuse(f"this is a directory; {hint}")
    match extension_of(path, place):
        case ".npz":
            return npz.read(path, place)
        case ".parquet":
            return parquet_table.read(path, place)
        case _:
            return csv_table.read(path, place)


def write(
    path: Path, tensors: Mapping[str, Tensor | Array | None], meta: Mapping[str, Any], *, wide: bool
) -> None:
    """Write content with its hash: logits as float32, or as float64 where they were read as float64 (`wide`).

    Probabilities and confidences stay float64 where they are, since one may lie exactly on the edge of a bin.
    Half precision is widened. Text has no types: in csv every float is written so that float64 comes back.
    """
    place = Place(str(path))
    extension = extension_of(path, place)
    arrays = {}
    for name, values in tensors.items():
        if isinstance(values, Tensor):
            narrow = name == "logits" and not wide and extension != ".csv"
            arrays[name] = _stored(values, name, place, narrow=narrow, text=extension == ".csv")
        elif values is not None:
            arrays[name] = values
    sha256 = digest(arrays, meta)
    match extension:
        case ".npz":
            npz.write(path, arrays, pack(meta, sha256))
        case ".parquet":
            parquet_table.write(path, arrays, pack(meta, sha256))
        case _:
            ids = {"ids": "text" if arrays["ids"].dtype.kind == "U" else "integer"} if "ids" in arrays else {}
            csv_table.write(path, arrays, pack(meta, sha256, **ids))


def extension_of(path: Path, place: Place) -> str:
    """Which of `EXTENSIONS` a file has; any other is refused."""
    extension = path.suffix.lower()
    if extension in EXTENSIONS:
        return extension
    if path.is_dir():
        return ".npz"  # what writes it says that it is a directory
    if extension in (".pt", ".pth", ".pkl", ".pickle", ".joblib"):
        place.refuse(
            "a pickle can run code and is never loaded; save with np.savez(path, logits=..., labels=...)"
        )
    found = f"the extension {show(extension)!r} is none of ours" if extension else "the name has no extension"
    place.refuse(f"{found}; .npz, .parquet and .csv are read and written")


def _stored(values: Tensor, name: str, place: Place, *, narrow: bool, text: bool) -> Array:
    """The array that is written for a tensor."""
    values = values.cpu()
    if not values.is_floating_point():
        return values.numpy()
    if text:
        return values.double().numpy()
    if values.dtype in (torch.float16, torch.bfloat16):
        return values.float().numpy()
    if not narrow or values.dtype == torch.float32:
        return values.numpy()
    short = values.float()
    if bool((short.isinf() & values.isfinite()).any()):
        place.refuse(f"{name} has numbers beyond float32, in which they are written; scale them down")
    return short.numpy()
