"""Whether what is to be scored was fitted on: the same file, the same split, the same ids, or the same rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core.numerics import blocks
from calibrant.core.predictions import Predictions

Array = np.ndarray


def overlap(fit: Predictions, other: Predictions) -> str | None:
    """Why a fit to the one says too much of the other, as the end of a sentence; None where it does not.

    Ids decide where both have them. Without, rows do: one that is in both files is in both samples. Rows that repeat
    within a file, as probabilities of two digits do, prove nothing unless they repeat more often from file to file.
    """
    if fit is other or _same_file(fit.source, other.source):
        return "they are the same file"
    found = same_origin(about(fit), other)
    if found is not None:
        return found
    if fit.ids is not None and other.ids is not None:
        shared = len(np.intersect1d(fit.ids.astype(str), other.ids.astype(str), assume_unique=True))
        return f"they have {_count(shared, 'id')} in common" if shared else None
    rows = _shared_rows(fit, other)
    return (
        f"{_count(rows, 'row')} of the second {'is' if rows == 1 else 'are'} in the first" if rows else None
    )


def about(predictions: Predictions) -> dict[str, Any]:
    """What a calibrator remembers of the predictions that it was fitted to."""
    told = {key: predictions.meta[key] for key in ("split", "run", "dataset") if key in predictions.meta}
    return {
        **told,
        "source": os.path.basename(predictions.source),
        "sha256": predictions.sha256,
        "n": predictions.n,
        "before": calibrations(predictions.meta),
    }


def same_origin(fit: Mapping[str, Any], other: Predictions) -> str | None:
    """Whether predictions are those that `about` was told of, or of the same split; for a calibrator from a file."""
    if fit.get("sha256") == other.sha256:
        return "they hold the same predictions"
    split, dataset = other.meta.get("split"), other.meta.get("dataset")
    elsewhere = dataset is not None and fit.get("dataset", dataset) != dataset
    if isinstance(split, str) and split == fit.get("split") and not elsewhere:
        return f"both are the split {split!r}"
    return None


def calibrations(meta: Mapping[str, Any]) -> list[str]:
    """The calibrators that predictions have been through, in their order."""
    steps = meta.get("calibration", [])
    steps = steps if isinstance(steps, list) else []
    return [str(step.get("method")) for step in steps if isinstance(step, Mapping)]


def row_keys(logits: Tensor, labels: Tensor, seed: int = 0) -> Array:
    """A 64-bit number for each row from its logits in float32 and its label, the same wherever the row stands.

    Two different rows have the same number by chance in one of a thousand million pairs at most.
    """
    n, k = logits.shape
    weights = np.random.default_rng([seed, k]).integers(1 << 64, size=k + 1, dtype=np.uint64) | np.uint64(1)
    keys = labels.cpu().numpy().astype(np.uint64) * weights[k]
    for rows in blocks(n, k):
        keys[rows] += (_words(logits[rows]).astype(np.uint64) * weights[:k]).sum(axis=1)
    keys ^= keys >> np.uint64(31)
    keys *= np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(keys ^ (keys >> np.uint64(29)))


def _words(logits: Tensor) -> Array:
    """Logits as the bits of float32, with one zero."""
    return (logits.to(torch.float32).cpu() + 0.0).contiguous().numpy().view(np.uint32)


def _shared_rows(fit: Predictions, other: Predictions) -> int:
    """How many rows of the second are rows of the first; 0 where chance explains them."""
    if fit.classes != other.classes:
        return 0
    keys = row_keys(fit.logits, fit.labels)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    twins = np.zeros(len(ordered), dtype=bool)
    twins[1:] = ordered[1:] == ordered[:-1]
    twins[:-1] |= twins[1:]
    wanted = row_keys(other.logits, other.labels)
    at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    found = np.flatnonzero(ordered[at] == wanted)
    same = 0
    for part in blocks(len(found), fit.classes):
        mine, theirs = torch.from_numpy(order[at[found[part]]]), torch.from_numpy(found[part])
        equal = (_words(fit.logits[mine]) == _words(other.logits[theirs])).all(axis=1)
        same += int((equal & (fit.labels[mine] == other.labels[theirs]).numpy()).sum())
    return same if same > 2 * twins.mean() * other.n else 0


def _same_file(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return False


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
