"""The best temperature for a loss that may have several valleys: a grid finds the lowest, a root its end."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.core.temperature import FARTHEST

_STEP = 0.25  # of the grid, in ln T
_SAMPLE = 1 << 21  # elements of the rows on which the grid is tried
Loss = Callable[[Tensor, Tensor, float], tuple[float, float]]
"""From logits, labels and 1/T, a loss and its derivative in 1/T."""


def best_temperature(loss: Loss, logits: Tensor, labels: Tensor) -> tuple[float, bool]:
    """The best T from a thousandth to a thousand times the largest difference of logits, and whether it is an end."""
    largest = _largest(logits)
    if largest == 0:
        return 1.0, False
    stride = max(1, logits.numel() // _SAMPLE)
    some = logits[::stride], labels[::stride]
    ends = math.log(largest / FARTHEST), math.log(largest * FARTHEST)
    grid = [ends[0] + i * _STEP for i in range(math.ceil((ends[1] - ends[0]) / _STEP) + 1)]
    values = [loss(*some, math.exp(-t))[0] for t in grid]
    place = values.index(min(values))
    low, high = grid[max(0, place - 1)], grid[min(len(grid) - 1, place + 1)]

    def slope(t: float) -> float:
        return -loss(logits, labels, math.exp(-t))[1]

    for _ in grid:  # the valley of all rows may be a step beyond that of some
        falls, rises = slope(low) < 0, slope(high) > 0
        if falls and rises:
            from scipy.optimize import brentq

            return math.exp(brentq(slope, low, high, xtol=1e-12, rtol=1e-12)), False
        if not falls and low <= grid[0]:
            return math.exp(grid[0]), True
        if not rises and high >= grid[-1]:
            return math.exp(grid[-1]), True
        low, high = (low, high + _STEP) if falls else (low - _STEP, high)
    return math.exp(grid[place]), False


def _largest(logits: Tensor) -> float:
    lowest = logits.where(logits > -math.inf, logits.amax(1, keepdim=True)).amin(1)
    largest = float((logits.amax(1) - lowest).max())
    if not math.isfinite(largest):
        raise InputError("logits must be finite, or -inf for a class that is masked and not the true one")
    return largest
