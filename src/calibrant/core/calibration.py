"""What a calibrator is: a frozen dataclass of settings, and what it learned as plain tensors beside it.

    fitted = calibrator.fit(logits, labels)      # Fitted: the calibrator, its state, the number of classes
    fitted(logits)                               # scope "full": logits [N, K]; scope "top": Top [N]

A calibrator writes three pure functions: `learn` gives the state, `apply` uses it, `shapes` says what a state must look
like. Saving, loading, chaining, exporting and the commands need nothing else of it, so a new one is one file.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.core.arrays import as_floats
from calibrant.core.contracts import ArrayLike
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.numerics import working_dtype
from calibrant.core.place import Place, show
from calibrant.core.predictions import Predictions
from calibrant.core.spec import canonical

Scope = Literal["full", "top"]
State = Mapping[str, Tensor]
Shape = tuple[int | None, ...]
"""The shape of a tensor of a state; None where the length depends on the data, such as the steps of an isotonic map."""

KEPT = (torch.float64, torch.float32, torch.int64, torch.bool)
"""The types of the tensors of a state."""


class CalibrationWarning(UserWarning):
    """A fit that has an answer but not a regular one, such as an optimum at infinity."""


@dataclass(frozen=True, eq=False)
class Top:
    """What a top-label calibrator gives: the class of each row as before, and the probability that it is right."""

    predicted: Tensor
    confidence: Tensor


class Procedure(ABC):
    """What can be fitted by name: a calibrator, or a choice among calibrators, which the fit makes."""

    @property
    @abstractmethod
    def scope(self) -> Scope:
        """`full`: logits to logits. `top`: the predicted class stays, its confidence is new."""

    @property
    @abstractmethod
    def keeps_argmax(self) -> bool:
        """Whether the predicted class is promised to stay."""

    @abstractmethod
    def settle(self, logits: Tensor, labels: Tensor) -> Fitted:
        """The fit to checked logits and labels. What it holds is always a calibrator, never a choice."""

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, source: str = "memory") -> Fitted:
        """Learn from predictions that the network was not trained on, and that are not scored afterwards."""
        checked = check_fit(logits, labels, source)
        with torch.no_grad():
            return self.settle(*checked)

    def __str__(self) -> str:
        return canonical(self)


class Calibrator(Procedure):
    """The interface of a post-hoc map. Settings are dataclass fields; the scope may depend on them."""

    @abstractmethod
    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The state from checked logits [N, K], float32 or float64, and labels [N]; the order of rows is no matter."""

    @abstractmethod
    def apply(self, state: State, logits: Tensor) -> Tensor | Top:
        """The map, in torch operations alone, without looking at values: it is exported as it stands."""

    @abstractmethod
    def shapes(self, classes: int) -> dict[str, Shape]:
        """The tensors of a state by name, so that a file can be refused before it is used."""

    @property
    def settled(self) -> bool:
        """Whether it is one calibrator; a chain in which a choice is still to be made is not."""
        return True

    def settle(self, logits: Tensor, labels: Tensor) -> Fitted:
        about = {"n": len(labels)}
        return Fitted(self, self.learn(logits, labels), int(logits.shape[1]), provenance=about)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A calibrator with what it learned; call it on logits.

    `notes` say how it was chosen, if it was; `provenance` is what is known of the rows that it was fitted to.
    """

    calibrator: Calibrator
    state: State
    classes: int
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, logits: ArrayLike) -> Tensor | Top:
        """The map, applied. No value is looked at, so that it can be exported: a row with NaN or +inf comes
        out as the arithmetic leaves it, often as NaN, and no other row is changed; the commands refuse it before."""
        given = as_floats(logits, "logits", 2, Place())
        if given.shape[1] != self.classes:
            raise InputError(
                f"{self.calibrator} was fitted to {self.classes} classes, and these logits are {list(given.shape)}"
            )
        with torch.no_grad():
            state = {name: tensor.to(given.device) for name, tensor in self.state.items()}
            return self.calibrator.apply(state, given.to(working_dtype(given.dtype)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a whole file or none: safetensors with a SHA-256 of every byte, which `load_calibrator` reads."""
        from calibrant.core.calibrator_file import save_calibrator

        save_calibrator(self, path)

    def __repr__(self) -> str:
        return f"Fitted({self.calibrator}, classes={self.classes})"


def check_fit(logits: ArrayLike, labels: ArrayLike, source: str = "memory") -> tuple[Tensor, Tensor]:
    """Logits in float32 or float64 and labels in int64, or a refusal of what no calibrator can learn from.

    That is: no rows, NaN, +inf, labels out of range, a true class that is masked with -inf.
    """
    known = Predictions(logits, labels, source=source)
    return known.logits.to(working_dtype(known.logits.dtype)), known.labels


def warn(text: str) -> None:
    """One sentence about a fit, which the command line prints and Python shows as a CalibrationWarning."""
    warnings.warn(text, CalibrationWarning, stacklevel=3)


def check_state(calibrator: Calibrator, state: State, classes: int) -> None:
    """Refuse a state that is not one of this calibrator: a name, a shape, a type or a number that does not fit."""
    wanted = calibrator.shapes(classes)
    if set(wanted) != set(state):
        kept, held = (show(sorted(each), 120) for each in (wanted, state))
        raise CalibrantError(
            f"{show(calibrator, 200)} keeps {kept}, and this state holds {held}; fit it again"
        )
    for name, shape in wanted.items():
        tensor, found, of = state[name], tuple(state[name].shape), f"{name} of {show(calibrator, 200)}"
        if len(found) != len(shape) or any(
            w is not None and w != f for w, f in zip(shape, found, strict=True)
        ):
            raise CalibrantError(
                f"{of} has shape {show(list(found), 80)}, not {show(list(shape), 80)}; fit it again"
            )
        if tensor.dtype not in KEPT:
            raise CalibrantError(f"{of} is {tensor.dtype}, which no state is; fit it again")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CalibrantError(f"{of} has numbers that are not finite; fit it again")
