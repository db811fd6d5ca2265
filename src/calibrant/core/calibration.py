"""What a calibrator is: a frozen dataclass of settings, and what it learned as plain tensors beside it.

    fitted = calibrator.fit(logits, labels)      # Fitted: the calibrator, its state, the number of classes
    fitted(logits)                               # scope "full": logits [N, K]; scope "top": Top [N]

A calibrator writes three pure functions: `learn` gives the state, `apply` uses it, `shapes` says what a state must look
like. Saving, loading, chaining, exporting and the commands need nothing else of it, so a new one is one file.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.spec import canonical

Scope = Literal["full", "top"]
State = Mapping[str, Tensor]
Shape = tuple[int | None, ...]
"""The shape of a tensor of a state; None where the length depends on the data, such as the steps of an isotonic map."""


class CalibrationWarning(UserWarning):
    """A fit that has an answer but not a regular one, such as an optimum at infinity."""


@dataclass(frozen=True, eq=False)
class Top:
    """What a top-label calibrator gives: the class of each row as before, and the probability that it is right."""

    predicted: Tensor
    confidence: Tensor


class Calibrator(ABC):
    """The interface of a post-hoc map. Settings are dataclass fields; the scope may depend on them."""

    @property
    @abstractmethod
    def scope(self) -> Scope:
        """`full`: logits to logits. `top`: the predicted class stays, its confidence is new."""

    @property
    @abstractmethod
    def keeps_argmax(self) -> bool:
        """Whether the predicted class is promised to stay."""

    @abstractmethod
    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The state from checked logits [N, K], float32 or float64, and labels [N]; the order of rows is no matter."""

    @abstractmethod
    def apply(self, state: State, logits: Tensor) -> Tensor | Top:
        """The map, in torch operations alone, without looking at values: it is exported as it stands."""

    @abstractmethod
    def shapes(self, classes: int) -> dict[str, Shape]:
        """The tensors of a state by name, so that a file can be refused before it is used."""

    def fit(self, logits: Tensor, labels: Tensor) -> Fitted:
        """Learn from predictions that the network was not trained on, and that are not scored afterwards."""
        check_fit(logits, labels)
        with torch.no_grad():
            return Fitted(self, self.learn(logits.detach(), labels), int(logits.shape[1]))

    def __str__(self) -> str:
        return canonical(self)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A calibrator with what it learned; call it on logits."""

    calibrator: Calibrator
    state: State
    classes: int

    def __call__(self, logits: Tensor) -> Tensor | Top:
        if logits.ndim != 2 or logits.shape[1] != self.classes:
            raise InputError(
                f"{self.calibrator} was fitted to {self.classes} classes, and these logits are {list(logits.shape)}"
            )
        with torch.no_grad():
            return self.calibrator.apply(self.state, logits)

    def __repr__(self) -> str:
        return f"Fitted({self.calibrator}, classes={self.classes})"


def check_fit(logits: Tensor, labels: Tensor) -> None:
    """Refuse what no calibrator can learn from: no rows, NaN, +inf, labels out of range, a masked true class."""
    if logits.ndim != 2 or logits.shape[1] < 2 or not logits.is_floating_point():
        raise InputError(f"logits must be [N, K] floats with K >= 2, not {logits.dtype} {list(logits.shape)}")
    if labels.shape != logits.shape[:1] or labels.is_floating_point():
        raise InputError(
            f"labels must be {logits.shape[0]} integers, not {labels.dtype} {list(labels.shape)}"
        )
    if not len(labels):
        raise InputError("there are no rows to fit to")
    if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        raise InputError(f"labels must lie between 0 and {logits.shape[1] - 1}")
    wrong = torch.isnan(logits) | (logits == torch.inf)
    if bool(wrong.any()):
        row = int(wrong.any(1).nonzero()[0, 0])
        raise InputError(f"row {row}: logits must be finite, or -inf for a masked class")
    masked = logits.gather(1, labels[:, None].long())[:, 0] == -torch.inf
    if bool(masked.any()):
        raise InputError(f"row {int(masked.nonzero()[0, 0])}: the true class is masked (-inf)")


def warn(text: str) -> None:
    """One sentence about a fit, which the command line prints and Python shows as a CalibrationWarning."""
    warnings.warn(text, CalibrationWarning, stacklevel=3)


def check_state(calibrator: Calibrator, state: State, classes: int) -> None:
    """Refuse a state that is not one of this calibrator: a name, a shape or a dtype that does not fit."""
    wanted = calibrator.shapes(classes)
    if set(wanted) != set(state):
        raise CalibrantError(f"{calibrator} keeps {sorted(wanted)}, and this state holds {sorted(state)}")
    for name, shape in wanted.items():
        found = tuple(state[name].shape)
        if len(found) != len(shape) or any(
            w is not None and w != f for w, f in zip(shape, found, strict=True)
        ):
            raise CalibrantError(f"{name} of {calibrator} has shape {list(found)}, not {list(shape)}")
