"""A world whose true posterior is known, so that estimators and trained networks can be held against the truth.

It has one kind of row, a vector z with a number for each class, and one law, `posterior(z)`. `draw` hands rows over as
the logits of a model that believes softmax(z), to test estimators; `load` hands them over as inputs, to train networks.
So there is one truth to check and to explain, and no second map whose inverse the posterior would need: whatever a
network says about rows of either kind, `posterior` of the same rows is what it should have said.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.predictions import Predictions
from calibrant.core.registry import register
from calibrant.core.samples import InputShape, Published, Samples

Truth = Literal["shift", "temperature"]
_REACH = 6.0  # of the logarithm of the temperature


@register("datasets", "synthetic")
@dataclass(frozen=True)
class Synthetic:
    r"""Vectors, one number a class, whose true posterior is known: to train on, or as predictions with a chosen error.

    Rows z are normal with standard deviation `spread`; labels are drawn from a posterior that differs from softmax(z).
    With truth "shift" the class of the largest number is right with probability confidence - `error`, in every row (the
    rest goes to the other classes in proportion), so that every top-label error of softmax(z) is `error` whatever the
    bins. With "temperature" the posterior is softmax(z / T), T set so that E|confidence - P(right | confidence)| is
    |`error`|; a negative error is underconfidence. With error 0 the network that returns its input is the best there
    is; a trained one comes near it, and then learns noise. `classes=100` with `spread=4` stands in for CIFAR-100.
    """

    classes: int = 3
    error: float = 0.0
    truth: Truth = "shift"
    spread: float = 2.0
    train: int = 10_000
    test: int = 10_000

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise CalibrantError(f"classes must be at least 2, not {self.classes}")
        for part, rows in (("train", self.train), ("test", self.test)):
            if rows < 1:
                raise CalibrantError(f"{part} must be at least 1 row, not {rows}")
        if self.spread <= 0:
            raise CalibrantError(f"spread must be positive, not {self.spread:g}")
        if self.truth == "shift" and not 0 <= self.error <= 1 / self.classes:
            raise CalibrantError(
                f"a shift of every confidence by {self.error:g} leaves [0, 1]: with {self.classes} classes error lies "
                f"between 0 and {1 / self.classes:.3g}; truth='temperature' reaches further"
            )
        if self.truth == "temperature":
            temperature_for(self.classes, self.error, self.spread)

    def draw(self, n: int, seed: int = 0) -> tuple[Predictions, Tensor]:
        """N predictions with their labels, and the posterior [N, K] that the labels were drawn from."""
        rng = np.random.default_rng([seed, self.classes])
        logits, labels, posterior = self._rows(n, rng, rng)
        meta = {"dataset": "synthetic", "model": f"synthetic, true error {self.error:g}", "seed": seed}
        return Predictions(logits, labels, meta=meta), posterior

    def load(self, data_dir: Path | None = None) -> Published:
        """The same rows at every call, none of them a row of `draw`; a smaller set is the beginning of a larger one."""
        parts, first = [], 0
        for part, n in enumerate((self.train, self.test)):
            z, coins = (np.random.default_rng([0, self.classes, 1 + 2 * part + which]) for which in (0, 1))
            inputs, labels, _ = self._rows(n, z, coins)
            parts.append(Samples(inputs, labels, torch.arange(first, first + n)))
            first += n
        names = tuple(str(number) for number in range(self.classes))
        return Published("synthetic", names, InputShape("vector", (self.classes,)), parts[0], parts[1])

    def _rows(
        self, n: int, z: np.random.Generator, coins: np.random.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """N rows, labels drawn from their posterior, and the posterior."""
        rows = torch.from_numpy((self.spread * z.standard_normal((n, self.classes))).astype(np.float32))
        posterior = self.posterior(rows)
        ladder = posterior.double().cumsum(1)
        uniform = torch.from_numpy(coins.random((n, 1))) * ladder[:, -1:]
        labels = torch.searchsorted(ladder, uniform, right=True)[:, 0].clamp_(max=self.classes - 1)
        return rows, labels, posterior

    def posterior(self, rows: Tensor) -> Tensor:
        """The true probability of each class given rows [N, K], inputs of `load` or logits of `draw`, in float64."""
        if self.truth == "temperature":
            return (rows.double() / temperature_for(self.classes, self.error, self.spread)).softmax(1)
        probs = rows.double().softmax(1)
        top, index = probs.max(dim=1, keepdim=True)
        right = top - self.error
        rest = (1 - right) / (1 - top).clamp(min=torch.finfo(torch.float64).tiny)
        return (probs * rest).scatter(1, index, right)


@lru_cache
def temperature_for(classes: int, error: float, spread: float) -> float:
    """The temperature at which softmax(logits / T) is `error` away from softmax(logits) on average."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(spread * rng.standard_normal((200_000, classes)))
    top, index = logits.softmax(1).max(dim=1, keepdim=True)
    low, high = -_REACH, _REACH
    for _ in range(60):
        middle = (low + high) / 2
        right = (logits / float(np.exp(middle))).softmax(1).gather(1, index)
        # the sign of the gap is the same for every row: T > 1 lowers the top probability, T < 1 raises it
        low, high = (middle, high) if float((top - right).mean()) < error else (low, middle)
    found = (low + high) / 2
    if abs(found) > _REACH - 1e-6:
        raise CalibrantError(
            f"no temperature makes a model of {classes} classes wrong by {error:g} on average"
        )
    return float(np.exp(found))
