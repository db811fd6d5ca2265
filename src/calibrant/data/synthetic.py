"""A source of predictions whose true posterior is known, so that estimators can be held against the truth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.predictions import Predictions
from calibrant.core.registry import register

Truth = Literal["shift", "temperature"]
_REACH = 6.0  # of the logarithm of the temperature


@register("datasets", "synthetic")
@dataclass(frozen=True)
class Synthetic:
    r"""Predictions with a chosen true calibration error and a known posterior.

    Logits are normal with standard deviation `spread`; labels are drawn from a posterior that differs from their
    softmax. With truth "shift" the predicted class is right with probability confidence - `error`, in every row (the
    rest goes to the other classes in proportion), so that every top-label error is `error` whatever the bins. With
    "temperature" the posterior is softmax(logits / T), T set so that E|confidence - P(right | confidence)| is
    |`error`|; a negative error is underconfidence. Error 0 is a calibrated model.
    """

    classes: int = 3
    error: float = 0.0
    truth: Truth = "shift"
    spread: float = 2.0

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise CalibrantError(f"classes must be at least 2, not {self.classes}")
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
        logits = (self.spread * rng.standard_normal((n, self.classes))).astype(np.float32)
        posterior = self.posterior(torch.from_numpy(logits))
        ladder = posterior.double().cumsum(1)
        uniform = torch.from_numpy(rng.random((n, 1))) * ladder[:, -1:]
        labels = torch.searchsorted(ladder, uniform, right=True)[:, 0].clamp_(max=self.classes - 1)
        meta = {"dataset": "synthetic", "model": f"synthetic, true error {self.error:g}", "seed": seed}
        return Predictions(logits, labels, meta=meta), posterior

    def posterior(self, logits: Tensor) -> Tensor:
        """The true probability of each class given the logits, in float64."""
        if self.truth == "temperature":
            return (logits.double() / temperature_for(self.classes, self.error, self.spread)).softmax(1)
        probs = logits.double().softmax(1)
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
