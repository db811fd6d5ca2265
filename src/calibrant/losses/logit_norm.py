"""LogitNorm: cross-entropy of logits of constant length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.pointwise import VJP, fused, log_probs, negative_log_likelihood, row_norm
from calibrant.core.registry import register
from calibrant.losses.target import TargetLoss, weighted

EPSILON = 1e-7


@register("losses", "logit_norm", paper="wei2022logitnorm")
@dataclass(frozen=True)
class LogitNorm(TargetLoss):
    r"""Cross-entropy of normalised logits: longer logits earn nothing, so confidence cannot grow by scale.

    $-\ln \mathrm{softmax}_y(z / (\tau (\lVert z \rVert_2 + 10^{-7})))$, tau the temperature. The trained confidence
    stays below $1 / (1 + (K - 1) e^{-r / \tau})$, $r = \sqrt{K / (K - 1)}$, so a tau above $1 / \ln K$ learns little;
    as tau falls to 0 the loss tends to $(\max_k \hat z_k - \hat z_y) / \tau$ with $\hat z$ of length 1. The network's
    own softmax is not what was trained: its scale is arbitrary, so calibrate it afterwards. The gradient is orthogonal
    to the logits and explodes as they come near 0. A constant added to all logits changes the loss: it changes
    their length.
    """

    temperature: float = 0.04
    drawn: ClassVar[tuple[str, ...]] = ("logit_norm(temperature=0.04)", "logit_norm(temperature=0.2)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-4 <= self.temperature <= 1e4:
            raise CalibrantError(f"temperature must lie between 1e-4 and 1e4, not {self.temperature:g}")

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        return negative_log_likelihood(normalised(logits, self.temperature), labels, self.ignore_index)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        return -(log_probs(normalised(logits, self.temperature)) * weighted(targets, weight)).sum(1)


def normalised(logits: Tensor, temperature: float) -> Tensor:
    """z / (temperature (|z| + 1e-7)), row by row; at z = 0 with the derivative of a norm that is 0 there."""

    def plain(z: Tensor) -> Tensor:
        return z / (temperature * (row_norm(z) + EPSILON))

    def quick(z: Tensor) -> tuple[Tensor, VJP]:
        norm = row_norm(z)
        scale = 1 / (temperature * (norm + EPSILON))
        bend = temperature * scale / norm.clamp_min(torch.finfo(z.dtype).tiny ** 0.5)

        def vjp(g: Tensor) -> Tensor:
            along = (g * z).sum(1, keepdim=True)
            return torch.addcmul(g, z, along * bend, value=-1) * scale

        return z * scale, vjp

    return fused(logits, quick, plain)
