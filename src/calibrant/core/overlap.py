"""Whether what is to be scored was fitted on: the same file, the same split, the same ids, or the same rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from calibrant.core.numerics import blocks
from calibrant.core.predictions import Predictions
from calibrant.core.rows import bits, row_keys


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


def _shared_rows(fit: Predictions, other: Predictions) -> int:
    """How many rows of the second are rows of the first; 0 where chance explains them."""
    if fit.classes != other.classes:
        return 0
    keys, order = row_keys(fit.logits, fit.labels).sort(stable=True)
    twins = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
    twins[1:] = keys[1:] == keys[:-1]
    twins[:-1] |= twins[1:].clone()
    wanted = row_keys(other.logits, other.labels).to(keys.device)
    at = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
    found = (keys[at] == wanted).nonzero()[:, 0]
    same = 0
    for part in blocks(len(found), fit.classes):
        mine, theirs = order[at[found[part]]], found[part].to(other.logits.device)
        equal = (bits(fit.logits[mine]) == bits(other.logits[theirs]).to(keys.device)).all(1)
        same += int((equal & (fit.labels[mine] == other.labels[theirs].to(keys.device))).sum())
    return same if same > 2 * float(twins.float().mean()) * other.n else 0


def _same_file(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return False


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
