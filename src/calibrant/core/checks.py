"""What the numbers of predictions must be, and the sentence that each fault gets.

A check reads the numbers where they are: a million rows of a hundred classes need no second copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calibrant.core.arrays import as_classes, as_confidence, as_floats, as_ids, as_meta
from calibrant.core.place import Place, Tally

SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""How far the probabilities of a row may sum from 1. Half precisions get about five units in the last place of 1,
what a softmax computed in them needs. The wider ones get 1e-4: numbers printed with six digits pass,
whatever is not normalised does not."""


BLOCK = 1 << 22
"""Numbers that are compared together where a check needs a copy."""


def predictions_fields(
    logits: Any,
    labels: Any,
    ids: Any,
    meta: Mapping[str, Any] | None,
    given: Mapping[str, Any],
    place: Place,
    exact: Tensor | None = None,
) -> dict[str, Any]:
    """Everything that `Predictions` holds, checked; `exact` are probabilities whose logarithms are the logits."""
    name = "logits" if exact is None else "probs"
    checked = as_floats(logits, name, 2, place)
    rows, classes = checked.shape
    if not rows:
        place.refuse("there are no rows; at least one is needed")
    if classes < 2:
        hint = "for one probability per row use Predictions.from_binary"
        place.refuse(f"{name} has shape {tuple(checked.shape)}, and at least two classes are needed; {hint}")
    truth = as_classes(labels, "labels", rows, classes, place).to(checked.device)
    kept = as_meta(meta, place)
    probs, confidence, predicted = exact, given.get("confidence"), given.get("predicted")
    reach: float | None = None
    if exact is None:
        reach = check_logits(checked, truth, place, label_may_be_masked=kept.get("from") == "probs")
        if given.get("probs") is not None:
            probs = as_floats(given["probs"], "probs", 2, place).to(checked.device)
            if probs.shape != checked.shape:
                shapes = f"probs has shape {tuple(probs.shape)}, logits has {tuple(checked.shape)}"
                place.refuse(f"{shapes}; give them for the same rows and classes")
            check_probs(probs, place)
            check_agreement(checked, probs, place)
    if (confidence is None) != (predicted is None):
        place.refuse("confidence and predicted go together; give both or neither")
    if confidence is not None:
        confidence = as_confidence(confidence, "confidence", rows, place).to(checked.device)
        predicted = as_classes(predicted, "predicted", rows, classes, place).to(checked.device)
    return {
        "logits": checked,
        "labels": truth,
        "ids": None if ids is None else as_ids(ids, rows, place),
        "meta": kept,
        "probs": probs,
        "confidence": confidence,
        "predicted": predicted,
        "reach": reach,
        "source": place.source,
    }


def check_logits(logits: Tensor, labels: Tensor, place: Place, *, label_may_be_masked: bool) -> float:
    """The largest size of a logit; NaN and +inf are refused. -inf is a mask, but never of a row or a true class."""
    low, high = torch.aminmax(logits)  # one pass without a copy; NaN comes through
    if math.isfinite(low) and math.isfinite(high):
        return max(-float(low), float(high))
    nan, inf, masked, label = Tally(), Tally(), Tally(), Tally()
    top = logits.amax(dim=1)
    nan.add(top.isnan())
    inf.add(top.isposinf())
    masked.add(top.isneginf())
    if not label_may_be_masked:
        label.add(logits.gather(1, labels[:, None])[:, 0].isneginf())
    if nan.count:
        place.refuse(f"logits of {nan.show(place)} has NaN; find what made it, or leave the row out")
    if inf.count:
        overflow = ", or compute it in float32" if logits.dtype == torch.float16 else ""
        place.refuse(
            f"logits of {inf.show(place)} has +inf; find what made it{overflow}, or leave the row out"
        )
    if masked.count:
        place.refuse(
            f"logits of {masked.show(place)} is -inf everywhere, so no class is possible; leave the row out"
        )
    if label.count:
        place.refuse(
            f"logits of {label.show(place)} masks the true class with -inf; unmask it, or leave the row out"
        )
    return math.inf


def check_probs(probs: Tensor, place: Place) -> None:
    """Refuse what is not a probability, and rows that do not sum to 1 within `SUM_TOLERANCE`."""
    nan, outside, unnormalised = Tally(), Tally(), Tally()
    low, high = torch.aminmax(probs)
    if not (low >= 0 and high <= 1):
        nan.add(probs.amax(dim=1).isnan())
        outside.add((probs.amin(dim=1) < 0) | (probs.amax(dim=1) > 1))
    sums, tolerance = probs.sum(dim=1), SUM_TOLERANCE[probs.dtype]
    unnormalised.add((sums - 1).abs() > tolerance)
    if nan.count:
        place.refuse(f"probs of {nan.show(place)} has NaN; find what made it, or leave the row out")
    if outside.count:
        place.refuse(
            f"probs of {outside.show(place)} leaves [0, 1]; if these are logits, give them as logits"
        )
    if unnormalised.count:
        example = float(sums[unnormalised.first])
        kind = str(probs.dtype).removeprefix("torch.")
        place.refuse(
            f"probs of {unnormalised.show(place)} sums to {example:.6g}, not to 1 within {tolerance:g} ({kind});"
            " divide each row by its sum if that is what you mean"
        )


def check_agreement(logits: Tensor, probs: Tensor, place: Place) -> None:
    """Refuse probabilities that are not the softmax of the logits beside them.

    What rounding may move is allowed: the tolerance of the row sums, or eight units in the last place of the
    largest logit, since an error in a logit is a relative error in its probability.
    """
    apart, eps = Tally(), torch.finfo(logits.dtype).eps
    wide = torch.float64 if torch.float64 in (logits.dtype, probs.dtype) else torch.float32
    step = max(1, BLOCK // logits.shape[1])
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        block = logits[rows].to(wide)
        size = block.nan_to_num(neginf=0.0).abs().amax(dim=1)
        allowed = (8 * eps * (1 + size)).clamp_min(SUM_TOLERANCE[probs.dtype])
        apart.add((block.softmax(dim=1) - probs[rows]).abs().amax(dim=1) > allowed, start)
    if apart.count:
        place.refuse(
            f"probs of {apart.show(place)} is not the softmax of its logits; keep the one that you mean"
        )
