"""Where every linear map begins: temperature scaling, with features in units of the best temperature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.calibration import warn
from calibrant.core.numerics import working_dtype
from calibrant.core.rows import row_keys
from calibrant.core.temperature import FARTHEST, fit_temperature


def filled(z: Tensor) -> tuple[Tensor, Tensor]:
    """Masked entries replaced by the mean of the others of their row, and where there is no mask."""
    seen = z > -torch.inf
    mean = torch.where(seen, z, 0).sum(1, keepdim=True) / seen.sum(1, keepdim=True)
    return torch.where(seen, z, mean), seen


@dataclass(frozen=True)
class Start:
    """Features in units of the best temperature, and temperature scaling in these units."""

    x: Tensor
    mask: Tensor | None
    unit: float
    theta: Tensor
    square: float
    right: bool

    def state(self, theta: Tensor) -> dict[str, Tensor]:
        """What is kept: weights for logits as they come."""
        return {"weight": theta[:, :-1] / self.unit, "bias": theta[:, -1].clone()}


def in_one_order(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The rows in an order of their content: sums and the path of a solver then have the same bits in any order."""
    order = row_keys(logits, labels).argsort(stable=True)
    return logits[order], labels[order]


def start_from_temperature(features: Tensor, labels: Tensor, *, diagonal: bool) -> Start:
    """Temperature scaling of features; where every row is right there is no best map, and a warning says so."""
    fit = fit_temperature(features, labels)
    right = fit.bound is not None and "right" in fit.bound
    if right:
        warn(f"no best map: {fit.bound}; T = {fit.temperature:g} is used")
    endless = fit.bound is not None and "infinity" in fit.bound
    unit = fit.temperature / FARTHEST if endless else fit.temperature
    z, seen = filled(features)
    x = (z.double() / unit).to(working_dtype(features.dtype))
    k = x.shape[1]
    weight = torch.eye(k, dtype=torch.float64, device=x.device) * (unit / fit.temperature)
    bias = weight.new_zeros(k, 1)
    theta = torch.cat([weight.diagonal()[:, None] if diagonal else weight, bias], 1)
    square = float((x - x.mean(1, keepdim=True)).square().mean(dtype=torch.float64))
    return Start(x, None if bool(seen.all()) else ~seen, unit, theta, max(square, 1e-12), right)


def parts(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Indicators of the off-diagonal entries and of the intercepts in the shape of theta."""
    off, bias = torch.ones_like(theta), torch.zeros_like(theta)
    off.fill_diagonal_(0)
    off[:, -1] = 0
    bias[:, -1] = 1
    return off, bias
