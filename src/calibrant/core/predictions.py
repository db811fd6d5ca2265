"""Predictions: the waist of the whole house. Training writes them, everything else only reads them.

They are always logits. Probabilities enter by `Predictions.from_probs`, one probability per row by
`Predictions.from_binary`, and confidences with their correctness by `TopLabel`: nothing is guessed from
values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core import formats
from calibrant.core.arrays import as_confidence, as_correct, as_floats, as_ids, as_meta
from calibrant.core.checks import check_probs, predictions_fields
from calibrant.core.content import Content, digest, verify
from calibrant.core.place import Place

Given = Any
"""What a person may hand in as an array: torch, numpy, nested lists, or what `numpy.asarray` understands."""

Ids = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Predictions:
    """The logits of a classifier and the true classes, checked once, at the door.

    Arrays are shared, not copied: do not change them afterwards. `probs` are the exact probabilities where
    they came as such, `confidence` and `predicted` what a top-label calibrator adds. `-inf` masks a class.
    Rows are counted from 0. `dataclasses.replace(predictions, logits=...)` gives checked predictions with
    other logits.
    """

    logits: Tensor
    labels: Tensor
    ids: Ids | None
    meta: Mapping[str, Any]
    probs: Tensor | None
    confidence: Tensor | None
    predicted: Tensor | None
    source: str
    reach: float | None = field(init=False)  # the largest size of a logit, which the check has seen

    def __init__(
        self,
        logits: Given,
        labels: Given,
        *,
        ids: Given = None,
        meta: Mapping[str, Any] | None = None,
        probs: Given = None,
        confidence: Given = None,
        predicted: Given = None,
        source: str = "memory",
    ) -> None:
        given = {"probs": probs, "confidence": confidence, "predicted": predicted}
        self._fill(logits, labels, ids, meta, given, Place(source))

    @classmethod
    def from_probs(
        cls,
        probs: Given,
        labels: Given,
        *,
        ids: Given = None,
        meta: Mapping[str, Any] | None = None,
        source: str = "memory",
    ) -> Predictions:
        """Predictions from probabilities: logits are their logarithms, `probs` keeps them to the last bit.

        A row sums to 1 within 1e-4 (float16 5e-3, bfloat16 4e-2), or is refused. A true class may have
        probability 0: its logit is -inf and its negative log-likelihood infinite.
        """
        return cls._from_probs(probs, labels, ids, meta, {}, Place(source))

    @classmethod
    def from_binary(
        cls,
        prob_of_class_1: Given,
        labels: Given,
        *,
        ids: Given = None,
        meta: Mapping[str, Any] | None = None,
        source: str = "memory",
    ) -> Predictions:
        """Predictions of two classes from the probability of class 1; labels are 0 and 1."""
        place = Place(source)
        one = as_confidence(prob_of_class_1, "prob_of_class_1", None, place)
        return cls._from_probs(torch.stack([1 - one, one], dim=1), labels, ids, meta, {}, place)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Predictions:
        """Read `.npz`, `.parquet` or `.csv`; large uncompressed npz arrays are mapped, not read."""
        found = load(path)
        if isinstance(found, TopLabel):
            Place(str(path)).refuse("it holds (confidence, correct) pairs; read it with TopLabel.load")
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a whole file or none, with its hash; logits as float32, or float64 if so read."""
        formats.write(Path(path), self._arrays(), self.meta, wide=self.source != "memory")

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.labels)

    @property
    def classes(self) -> int:
        """The number of classes, K."""
        return int(self.logits.shape[1])

    @cached_property
    def sha256(self) -> str:
        """The hash of all but `source`: types, shapes and bytes of the arrays, and the meta."""
        return digest(self._arrays(), self.meta)

    def __repr__(self) -> str:
        kind = str(self.logits.dtype).removeprefix("torch.")
        return f"Predictions(n={self.n}, classes={self.classes}, {kind}, source={self.source!r})"

    def _arrays(self) -> dict[str, Tensor | Ids | None]:
        names = ("logits", "labels", "ids", "probs", "confidence", "predicted")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def _from_content(cls, content: Content, place: Place) -> Predictions:
        arrays = dict(content.arrays)
        logits, labels, ids = arrays.pop("logits", None), arrays.pop("labels"), arrays.pop("ids", None)
        if logits is None:
            return cls._from_probs(arrays.pop("probs"), labels, ids, content.meta, arrays, place)
        made = cls.__new__(cls)
        made._fill(logits, labels, ids, content.meta, arrays, place)
        return made

    @classmethod
    def _from_probs(
        cls,
        probs: Given,
        labels: Given,
        ids: Given,
        meta: Mapping[str, Any] | None,
        rest: Mapping[str, Given],
        place: Place,
    ) -> Predictions:
        exact = as_floats(probs, "probs", 2, place)
        if len(exact) and exact.shape[1] > 1:
            check_probs(exact, place)
        half = exact.dtype in (torch.float16, torch.bfloat16)
        logits = (exact.float() if half else exact).log()
        made = cls.__new__(cls)
        made._fill(logits, labels, ids, {**as_meta(meta, place), "from": "probs"}, rest, place, exact=exact)
        return made

    def _fill(
        self,
        logits: Given,
        labels: Given,
        ids: Given,
        meta: Mapping[str, Any] | None,
        given: Mapping[str, Given],
        place: Place,
        exact: Tensor | None = None,
    ) -> None:
        fields = predictions_fields(logits, labels, ids, meta, given, place, exact)
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class TopLabel:
    """The confidence of each prediction and whether it was right: enough for every top-label metric."""

    confidence: Tensor
    correct: Tensor
    ids: Ids | None
    meta: Mapping[str, Any]
    source: str

    def __init__(
        self,
        confidence: Given,
        correct: Given,
        *,
        ids: Given = None,
        meta: Mapping[str, Any] | None = None,
        source: str = "memory",
    ) -> None:
        self._fill(confidence, correct, ids, meta, Place(source))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TopLabel:
        """Read (confidence, correct) pairs from `.npz`, `.parquet` or `.csv`."""
        found = load(path)
        if isinstance(found, Predictions):
            Place(str(path)).refuse("it holds logits or probabilities; read it with Predictions.load")
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a whole file or none, with its hash; a float64 confidence stays float64."""
        formats.write(Path(path), self._arrays(), self.meta, wide=True)

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.confidence)

    @cached_property
    def sha256(self) -> str:
        """The hash of all but `source`: types, shapes and bytes of the arrays, and the meta."""
        return digest(self._arrays(), self.meta)

    def __repr__(self) -> str:
        return f"TopLabel(n={self.n}, source={self.source!r})"

    def _arrays(self) -> dict[str, Tensor | Ids | None]:
        return {name: getattr(self, name) for name in ("confidence", "correct", "ids")}

    def _fill(
        self, confidence: Given, correct: Given, ids: Given, meta: Mapping[str, Any] | None, place: Place
    ) -> None:
        checked = as_confidence(confidence, "confidence", None, place)
        fields = {
            "confidence": checked,
            "correct": as_correct(correct, len(checked), place),
            "ids": None if ids is None else as_ids(ids, len(checked), place),
            "meta": as_meta(meta, place),
            "source": place.source,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def load(path: str | os.PathLike[str]) -> Predictions | TopLabel:
    """Read predictions or (confidence, correct) pairs, whichever a file holds by the names in it."""
    content = formats.read(Path(path))
    place = Place(str(path), content.first_line)
    found: Predictions | TopLabel
    if "correct" in content.arrays:
        found = TopLabel.__new__(TopLabel)
        arrays = content.arrays
        found._fill(arrays["confidence"], arrays["correct"], arrays.get("ids"), content.meta, place)
    else:
        found = Predictions._from_content(content, place)
    verify(found.sha256, content, place)
    return found
