"""From predictions to calibrated predictions: fitted on one split, applied to another, and never to the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibrant.core.calibration import Fitted, Procedure, Top
from calibrant.core.chain import calibrator
from calibrant.core.errors import InputError
from calibrant.core.overlap import about, calibrations, overlap, same_origin
from calibrant.core.place import Place, show
from calibrant.core.predictions import Predictions, TopLabel


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The calibrator and what it made of the predictions; `oracle` says what both share, where that was allowed."""

    fitted: Fitted
    predictions: Predictions
    oracle: str | None = None


def calibrate(
    fit: Predictions | TopLabel,
    apply: Predictions | TopLabel,
    method: str | Procedure,
    *,
    allow_overlap: bool = False,
) -> Calibrated:
    """Fit a method to predictions of one split, and apply it to those of another.

    The same file, split, ids or rows are refused, since a fit looks good on its own rows; `allow_overlap` permits them
    for experiments that ask what the best fit could do, and marks the result "oracle".
    """
    first, second = full(fit), full(apply)
    oracle = overlap(first, second)
    _refuse_overlap(first.source, second.source, oracle, allow_overlap)
    _check_classes(first.classes, second)
    fitted = learn(first, method)
    return Calibrated(fitted, transformed(fitted, second, oracle=oracle is not None), oracle)


def learn(fit: Predictions | TopLabel, method: str | Procedure) -> Fitted:
    """A calibrator fitted to predictions, which remembers what they were."""
    given = full(fit)
    procedure = calibrator(method) if isinstance(method, str) else method
    fitted = procedure.fit(given.logits, given.labels, source=given.source)
    return replace(fitted, provenance={**fitted.provenance, "method": str(procedure), "fit": about(given)})


def apply_fitted(fitted: Fitted, apply: Predictions | TopLabel, *, allow_overlap: bool = False) -> Calibrated:
    """Apply a fitted calibrator; what is known of the rows it was fitted to is held against these."""
    given = full(apply)
    _check_classes(fitted.classes, given)
    known = fitted.provenance.get("fit")
    oracle = same_origin(known, given) if isinstance(known, Mapping) else None
    _refuse_overlap("the rows that this calibrator was fitted to", given.source, oracle, allow_overlap)
    return Calibrated(fitted, transformed(fitted, given, oracle=oracle is not None), oracle)


def full(predictions: Predictions | TopLabel) -> Predictions:
    """Predictions that a calibrator can read: with logits, and not through a top-label calibrator before."""
    place = Place(predictions.source)
    if isinstance(predictions, TopLabel):
        place.refuse("it holds (confidence, correct) pairs, and a calibrator needs logits or probabilities")
    if predictions.confidence is not None:
        place.refuse(
            "a top-label calibrator has changed its confidence, and no calibrator can follow one;"
            " calibrate what it was made from"
        )
    return predictions


def transformed(fitted: Fitted, given: Predictions, *, oracle: bool = False) -> Predictions:
    """The predictions with what the calibrator makes of them, and with a note of it in their meta."""
    known = fitted.provenance.get("fit")
    known = known if isinstance(known, Mapping) else {}
    before = known.get("before")
    if isinstance(before, list) and before != calibrations(given.meta):
        told = [" > ".join(map(str, each)) or "nothing" for each in (before, calibrations(given.meta))]
        Place(given.source).refuse(
            f"it went through {show(told[1], 80)} before, and what this calibrator was fitted to through"
            f" {show(told[0], 80)}; calibrate both alike"
        )
    step = {"method": str(fitted.calibrator), "fit": {k: v for k, v in known.items() if k != "before"}}
    earlier = given.meta.get("calibration")
    earlier = earlier if isinstance(earlier, list) else []
    meta: dict[str, Any] = {**given.meta, "calibration": [*earlier, step]}
    if oracle:
        meta["oracle"] = True
    found = fitted(given.logits)
    if isinstance(found, Top):
        return replace(given, confidence=found.confidence, predicted=found.predicted, meta=meta)
    probs = None if given.probs is None else found.double().softmax(1).to(given.probs.dtype)
    return replace(given, logits=found, probs=probs, meta=meta)


def _check_classes(classes: int, given: Predictions) -> None:
    if classes != given.classes:
        Place(given.source).refuse(
            f"it has {given.classes:,} classes, and the calibrator is for {classes:,}; use predictions of one model"
        )


def _refuse_overlap(fit: str, apply: str, reason: str | None, allowed: bool) -> None:
    if reason is not None and not allowed:
        raise InputError(
            f"{show(apply, 300)} would be scored by what it was fitted on, {show(fit, 300)}: {reason};"
            " use another split, or --allow-overlap (allow_overlap=True) for an oracle"
        )
