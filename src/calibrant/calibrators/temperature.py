"""Temperature scaling: one number for all rows and classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant.core.binning import check_bins
from calibrant.core.calibration import Calibrator, Scope, Shape, State, warn
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register
from calibrant.core.temperature import best_temperature_for_ece, fit_temperature

_MOST = 100_000  # temperatures of a grid


@register("calibrators", "temperature", paper="guo2017")
@dataclass(frozen=True)
class Temperature(Calibrator):
    r"""Divides all logits by one number: confidence falls for T > 1 and rises for T < 1, in every row alike.

    $z' = z / T$ with the T > 0 of the smallest log loss, found to within 1e-6 of $\ln T$. At T = 1 it is `identity`.
    Classes and ranks stay, so it can repair no bias for a class and no wrong order. All right, all wrong or constant
    logits have no best T; a warning says so and names the number that is used.
    `objective="ece"` takes the first T of a grid (lowest, lowest + step, ..., highest) with the smallest ECE over
    equal-width bins; document 002's grid is the default. It follows the noise of its bins, and does not bound the
    log loss. A T at an end of the grid is warned of. *Deviation:* the code of document 002 searches 0, 0.01, ...,
    4.99; its text, which is followed here, 0.01 to 10.
    """

    objective: Literal["nll", "ece"] = "nll"
    lowest: float = 0.01
    highest: float = 10.0
    step: float = 0.01
    bins: int = 15

    def __post_init__(self) -> None:
        check_bins(self.bins)
        if not (0 < self.lowest <= self.highest < math.inf and 0 < self.step < math.inf):
            raise CalibrantError(
                f"a grid of temperatures needs 0 < lowest <= highest and a step above 0, not lowest={self.lowest:g},"
                f" highest={self.highest:g}, step={self.step:g}"
            )
        if (self.highest - self.lowest) / self.step > _MOST:
            raise CalibrantError(
                f"step={self.step:g} makes a grid of more than {_MOST} temperatures; widen it"
            )

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return True

    @property
    def grid(self) -> tuple[float, ...]:
        """The temperatures that are tried for ECE; where 1 / step is whole, each is a correctly rounded quotient."""
        many = math.floor((self.highest - self.lowest) / self.step + 1e-9) + 1
        per = round(1 / self.step)
        first = round(self.lowest * per)
        if per and math.isclose(per * self.step, 1) and math.isclose(first, self.lowest * per):
            return tuple((first + i) / per for i in range(many))
        return tuple(self.lowest + i * self.step for i in range(many))

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.objective == "nll":
            fit = fit_temperature(logits, labels)
            found = fit.temperature
            if fit.bound is not None:
                warn(f"no best temperature: {fit.bound}; T = {found:g} is used")
        else:
            grid = self.grid
            found = best_temperature_for_ece(logits, labels, grid, self.bins)
            if len(grid) > 1 and found in (grid[0], grid[-1]):
                warn(f"T = {found:g} is an end of the grid; the best temperature for ECE may lie beyond it")
        return {"temperature": torch.tensor(found, dtype=torch.float64, device=logits.device)}

    def apply(self, state: State, logits: Tensor) -> Tensor:
        return logits / state["temperature"].to(logits)

    def shapes(self, classes: int) -> dict[str, Shape]:
        return {"temperature": ()}
