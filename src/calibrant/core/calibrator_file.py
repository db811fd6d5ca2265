"""Fitted calibrators on disk: one safetensors file that holds numbers and a spec string, and can run nothing.

The spec is parsed, never evaluated, and names a calibrator of the registry; the tensors have to be exactly those that
this calibrator keeps for so many classes. So a file is either a calibrator or refused, whoever wrote it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from calibrant import __version__
from calibrant.core.calibration import Calibrator, Fitted, Top, check_state
from calibrant.core.chain import calibrator
from calibrant.core.errors import CalibrantError, SpecError
from calibrant.core.place import Place, show
from calibrant.core.tensor_file import load_tensors, save_tensors

KIND = "calibrator"

MOST_CLASSES = 1 << 31

PROBED_CLASSES = 1 << 16
"""Up to so many classes, what was loaded is tried on two rows of logits: a file of a few bytes costs no more."""


def save_calibrator(fitted: Fitted, path: str | os.PathLike[str]) -> None:
    """Write spec, classes, state, notes and provenance; a whole file or none."""
    check_state(fitted.calibrator, fitted.state, fitted.classes)
    meta = {
        "spec": str(fitted.calibrator),
        "classes": fitted.classes,
        "version": __version__,
        "notes": list(fitted.notes),
        "provenance": dict(fitted.provenance),
    }
    save_tensors(Path(path), KIND, fitted.state, meta)


def load_calibrator(path: str | os.PathLike[str]) -> Fitted:
    """A calibrator from a file of `Fitted.save`: the same bits, or one sentence."""
    place = Place(str(path))
    tensors, meta = load_tensors(Path(path), KIND)
    spec, classes, notes, provenance = (meta.get(key) for key in ("spec", "classes", "notes", "provenance"))
    if not isinstance(spec, str) or not isinstance(classes, int) or isinstance(classes, bool):
        place.refuse("it names no calibrator and number of classes; save it again with Fitted.save")
    if not 2 <= classes <= MOST_CLASSES:
        place.refuse(f"it claims {show(classes)} classes, and a calibrator has at least 2; save it again")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        place.refuse("its notes are no list of texts; save it again with Fitted.save")
    if not isinstance(provenance, dict):
        place.refuse("its provenance is no JSON object; save it again with Fitted.save")
    made = _calibrator(spec, meta.get("version"), place)
    state = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        check_state(made, state, classes)
    except CalibrantError as error:
        place.refuse(str(error))
    fitted = Fitted(made, state, classes, tuple(notes), provenance)
    if classes <= PROBED_CLASSES and not sound(fitted):
        place.refuse(
            f"the numbers of {show(made, 200)} in it give no probabilities; save it again with Fitted.save"
        )
    return fitted


def sound(fitted: Fitted) -> bool:
    """Whether two rows of logits become what they have to: what does not fit together would show now, not later."""
    up = torch.linspace(-1, 1, fitted.classes, dtype=torch.float64)
    logits = torch.stack([up, -up])
    try:
        found = fitted(logits)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return False
    if isinstance(found, Top):
        shaped = found.confidence.shape == found.predicted.shape == logits.shape[:1]
        return shaped and bool(((found.confidence >= 0) & (found.confidence <= 1)).all())
    if found.shape != logits.shape or not bool(found.isfinite().all()):
        return False
    return not fitted.calibrator.keeps_argmax or torch.equal(found.argmax(1), logits.argmax(1))


def _calibrator(spec: str, version: Any, place: Place) -> Calibrator:
    try:
        made = calibrator(spec)
    except SpecError as error:
        place.refuse(
            f"this version ({__version__}) cannot make its calibrator, {error}; the file is by version"
            f" {show(version)}, so upgrade with pip install -U calibrant"
        )
    except CalibrantError as error:
        place.refuse(f"its calibrator cannot be made, {error}")
    if not isinstance(made, Calibrator) or not made.settled:
        place.refuse(f"{show(spec, 80)} chooses a calibrator when it is fitted, and cannot have a state")
    return made
