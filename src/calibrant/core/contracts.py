"""The page to read first: what each kind of piece is.

What can be *named* is a frozen dataclass of hyper-parameters, registered by one decorator (`core.registry`) and
written as a spec string (`core.spec`). What is *learned* is plain tensors that are handed in and out.

    Metric      metric(logits, labels) -> Estimate        one number with its interval and its null
    Loss        loss(logits, labels) -> scalar            mean over the batch; a criterion for anyone's loop
    Calibrator  fit(logits, labels) -> Fitted             Fitted(logits) -> logits, or TopLabel

The kinds whose rooms do not exist yet keep their contracts in `docs/architecture.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from calibrant.core.display import ESTIMATE_HEAD, Unit, html_table, interval, notes, number, p_value

Better = Literal["lower", "higher", "zero"]
Interval = tuple[float, float]
ArrayLike = Tensor | np.ndarray | Sequence[Any]


@dataclass(frozen=True)
class Null:
    """What a perfectly calibrated model with these very confidences would show: labels redrawn from its predictions.

    `p` is the share of redraws at least as extreme as what was observed, (1 + hits) / (1 + redraws).
    """

    mean: float
    q95: float
    p: float
    redraws: int


@dataclass(frozen=True)
class Estimate:
    """A metric's value at once; its 95 % interval and its null on first access, seeded, so that they repeat.

    `ci` is None where no honest interval exists, and `no_interval` says why. `value` is NaN where the metric does
    not apply and infinite where a true class has probability 0; `reason` says so and `rows` counts such rows.
    """

    value: float
    spec: str
    better: Better
    population: str
    unit: Unit = "%"
    reason: str | None = None
    rows: int | None = None
    no_interval: str | None = None
    _interval: Callable[[], Interval | None] | None = None
    _null: Callable[[], Null | None] | None = None

    @cached_property
    def ci(self) -> Interval | None:
        """The 95 % interval for the population value that `population` names."""
        return self._interval() if self._interval is not None else None

    @cached_property
    def null(self) -> Null | None:
        """The null distribution; None for a metric that is no calibration error."""
        return self._null() if self._null is not None else None

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        parts = [f"{self.spec} = {self.value:.6g}"]
        if "ci" in self.__dict__ and self.ci is not None:
            parts.append(f"95% [{self.ci[0]:.6g}, {self.ci[1]:.6g}]")
        if "null" in self.__dict__ and self.null is not None:
            parts.append(f"null {self.null.mean:.6g}, p = {self.null.p:.3g}")
        return f"Estimate({'; '.join(parts)})"

    def _repr_html_(self) -> str:
        return html_table(ESTIMATE_HEAD, [self.cells()], self.notes())

    def cells(self, name: str | None = None) -> list[str]:
        """A row of a table: name, value, interval, null mean and p, in percent where it is a share."""
        if not np.isfinite(self.value):
            return [name or self.spec, "n/a", "", "", ""]
        null = self.null
        return [
            name or self.spec,
            number(self.value, self.unit),
            interval(self.ci, self.unit),
            "" if null is None else number(null.mean, self.unit),
            "" if null is None else p_value(null.p, null.redraws),
        ]

    def notes(self, name: str | None = None) -> list[str]:
        """Why there is no value, or no interval; nothing where there are both."""
        if self.reason is not None:
            return notes([(name or self.spec, self.reason)])
        return notes([(f"no interval for {name or self.spec}", self.no_interval)]) if self.no_interval else []


@runtime_checkable
class Loss(Protocol):
    """A train-time objective: the mean over the batch; per-sample ones also give `per_sample -> [N]`."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor: ...
