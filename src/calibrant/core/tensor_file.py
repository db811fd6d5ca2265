"""Tensors on disk: safetensors with a schema version and a SHA-256 that is checked, so that nothing can run code.

What a file holds is said by its `kind` ("weights", "checkpoint", ...); a file of another kind, of a newer schema, cut
short or changed by one bit is refused in one sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.core.files import atomic, opened
from calibrant.core.place import Place

SCHEMA = 1


def save_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a whole file or none; `meta` is what JSON can hold."""
    from safetensors.torch import save

    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(meta, sort_keys=True, allow_nan=False)
    header = {"calibrant": kind, "schema": str(SCHEMA), "meta": text, "sha256": digest(kind, held, text)}
    with atomic(path) as file:
        file.write(save(held, header))


def load_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and meta of a file that `save_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    place = Place(str(path))
    with opened(path, place):
        pass
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        place.refuse(f"this is no whole safetensors file ({str(error)[:120]}); write it again")
    if header.get("calibrant") != kind:
        place.refuse(f"this is no file of {kind}, but of {header.get('calibrant', 'another program')}")
    schema = header.get("schema", "")
    if not schema.isdecimal() or int(schema) > SCHEMA:
        place.refuse(
            f"it has schema {schema[:20]!r}, and this version reads up to {SCHEMA}; update Calibrant"
        )
    text = header.get("meta", "")
    if header.get("sha256") != digest(kind, tensors, text):
        place.refuse("its SHA-256 does not fit what it holds: it was changed or damaged; write it again")
    meta: dict[str, Any] = json.loads(text)
    return tensors, meta


def digest(kind: str, tensors: Mapping[str, Tensor], text: str) -> str:
    """The hash of the kind, the meta, and each tensor's name, type, shape and bytes."""
    found = hashlib.sha256(f"{kind}\n{text}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if tensor.numel():
            found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
