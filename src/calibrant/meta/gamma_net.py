"""Gamma-Net: a focal gamma for every row, learned from what it does to a held-out objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.meta import (
    Head,
    MetaRegularizer,
    Phi,
    check_not_negative,
    check_positive,
    term_of,
)
from calibrant.core.objective import State, Summand
from calibrant.core.pointwise import (
    check_batch,
    is_soft,
    log_probs,
    modulated,
    negative_log_likelihood,
    widen,
)
from calibrant.core.registry import register
from calibrant.core.soft import full_precision
from calibrant.meta.base_loss import Conventions, class_numbers, mean_of, present, with_rest

SMALL = 1e-12  # under a mean or a range that is divided by


@register("meta", "gamma_net", paper="wang2024meta")
@dataclass(frozen=True)
class GammaNet(MetaRegularizer):
    r"""Gamma-Net: attention over the features gives each row its own focal gamma, and with it its own confidence.

    $\gamma_i = |\mathrm{softmax}(x_i A) A^T W| / \tau$ with $A \in R^{d \times k}$, $W \in R^{d \times 1}$, no bias,
    k = `heads` (K by default); it replaces the gamma of the base's `focal` and is a constant for the network. At first
    every gamma is `start`, so the loss is that focal loss; with W = 0 it is `ce`. Left alone it can drift without end:
    a larger gamma shrinks the loss. Options against that, none on by default: `bound` b, $b \tanh(\gamma / b)$;
    `normalise="mean"`, gamma over its batch mean times a learned scale; `weigh="relative"`, the factors
    $(1 - p)^\gamma$ over their mean; `prior` times $(\gamma - \mathrm{start})^2$ in the meta-objective, by row or
    of the mean; `inputs` over their root mean square, or standardised, row by row.
    *Deviation:* `minmax` has a learned scale too, and `sigmoid` a top: the bound, or twice the start.
    """

    temperature: float = 0.01
    heads: int | None = None
    activation: Literal["abs", "softplus", "sigmoid", "relu", "minmax"] = "abs"
    bound: float | None = None
    start: float = 1.0
    normalise: Literal["none", "mean"] = "none"
    weigh: Literal["absolute", "relative"] = "absolute"
    prior: float = 0.0
    prior_of: Literal["rows", "mean"] = "rows"
    inputs: Literal["raw", "rms", "standard"] = "raw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("temperature", self.temperature)
        check_positive("start", self.start)
        check_not_negative("prior", self.prior)
        if self.heads is not None and self.heads < 1:
            raise CalibrantError(f"heads must be at least 1, not {self.heads}")
        if self.bound is not None and not self.start < self.bound < math.inf:
            raise CalibrantError(
                f"bound must be finite and above the start of {self.start:g}, not {self.bound:g}"
            )

    def check(self, base: Summand) -> None:
        self._taken(base)

    def _taken(self, base: Summand) -> Any:
        return term_of(base, "focal", "and gamma_net replaces the gamma of exactly one; write 'focal'")

    @property
    def _scaled(self) -> bool:
        """Whether gamma is measured against its batch, and so has a scale of its own."""
        return self.normalise == "mean" or self.activation == "minmax"

    @property
    def _flattened(self) -> bool:
        """Whether the bound is a tanh; a sigmoid ends at it by itself."""
        return self.bound is not None and (self.activation != "sigmoid" or self._scaled)

    @property
    def _top(self) -> float:
        """Where a sigmoid ends."""
        return 2 * self.start if self.bound is None else self.bound

    def init(self, features: Tensor, classes: int, *, seed: int = 0) -> Phi:
        """A at random, but alike along one direction: W points there, and every row has the same gamma."""
        width, heads = features.shape[1], self.heads or classes
        generator = torch.Generator().manual_seed(seed)
        along = torch.randn(width, 1, generator=generator, dtype=torch.float64)
        along = along / along.norm()
        attention = torch.randn(width, heads, generator=generator, dtype=torch.float64) / math.sqrt(width)
        attention = attention - along @ (along.T @ attention) + along
        if self.activation == "minmax":  # equal rows have no range
            values = torch.randn(width, 1, generator=generator, dtype=torch.float64) / math.sqrt(width)
        else:
            values = self.temperature * self._before(self.start) * along
        like = widen(features)
        phi = {"attention": attention.to(like), "values": values.to(like)}
        if self._scaled:
            phi["scale"] = self._scale(phi, features)
        return phi

    def _before(self, gamma: float) -> float:
        """What the activation turns into this gamma."""
        if self._flattened:
            assert self.bound is not None
            gamma = self.bound * math.atanh(gamma / self.bound)
        if self.activation == "softplus":
            return gamma + math.log(-math.expm1(-gamma))
        if self.activation == "sigmoid":
            return math.log(self.start) - math.log(self._top - self.start)
        return gamma

    def _scale(self, phi: Phi, features: Tensor) -> Tensor:
        """The scale with which the first batch has a mean gamma of `start`, by bisection."""
        low, high = 0.0, 1e6 * self.start
        at = phi["values"].new_zeros(())
        for _ in range(100):
            at = torch.full_like(at, (low + high) / 2)
            if float(self.gamma({**phi, "scale": at}, features).mean()) < self.start:
                low = float(at)
            else:
                high = float(at)
        return at

    def gamma(self, phi: Phi, features: Tensor) -> Tensor:
        """The gamma of every row [N], differentiable in phi and a constant for the features."""
        attention, values = phi["attention"], phi["values"]
        with full_precision(features.device):
            x = self._prepared(features.detach().to(attention.dtype))
            share = (x @ attention).softmax(1)
            u = (share @ (attention.T @ values))[:, 0] / self.temperature  # (p A^T) W = p (A^T W)
            gamma = self._active(u)
            if self.normalise == "mean":
                gamma = gamma / gamma.mean().clamp_min(SMALL)
            if self._scaled:
                gamma = gamma * phi["scale"]
            return self.bound * torch.tanh(gamma / self.bound) if self._flattened else gamma  # type: ignore[operator]

    def _prepared(self, x: Tensor) -> Tensor:
        if self.inputs == "standard":
            return F.layer_norm(x, x.shape[1:])
        return x if self.inputs == "raw" else F.rms_norm(x, x.shape[1:], eps=1e-6)

    def _active(self, u: Tensor) -> Tensor:
        if self.activation == "abs":
            return u.abs()
        if self.activation == "relu":
            return u.relu()
        if self.activation == "softplus":
            return F.softplus(u)
        if self.activation == "sigmoid":
            return self._top * u.sigmoid()
        low = u.amin()
        return (u - low) / (u.amax() - low).clamp_min(SMALL)

    def loss(
        self,
        phi: Phi,
        features: Tensor,
        logits: Tensor,
        labels: Tensor,
        *,
        base: Summand,
        head: Head | None = None,
        state: State | None = None,
        still: Head | None = None,
    ) -> Tensor:
        factor, own, rest = self._taken(base)
        check_batch(logits, labels)
        z = widen(logits)
        gamma = self.gamma(phi, features).to(z.dtype)
        weight = class_numbers(own, z)
        nll = _rows(z, labels, own)
        gamma = gamma[:, None] if is_soft(labels) else gamma
        rigid = None
        if own.detach or self.weigh == "relative":
            at = nll.detach() if still is None else _rows(widen(still(features)), labels, own)
            rigid = _power(at, gamma)
        rows = rigid * nll if own.detach and rigid is not None else modulated(nll, gamma)
        if is_soft(labels):
            targets = labels.to(z.dtype) if weight is None else labels.to(z.dtype) * weight
            rows = (rows * targets).sum(1)
        elif weight is not None:
            rows = rows * weight[present(own, labels)]
        value = mean_of(own, rows, labels, weight)
        if self.weigh == "relative" and rigid is not None:
            value = value / _mean_factor(rigid, labels, own.ignore_index)
        return with_rest(factor, value, rest, state, logits, labels)

    def cost(self, phi: Phi, features: Tensor) -> Tensor | None:
        if not self.prior:
            return None
        gamma = self.gamma(phi, features)
        away = gamma - self.start if self.prior_of == "rows" else gamma.mean() - self.start
        return self.prior * away.square().mean()

    def project(self, phi: Phi) -> Phi:
        """Attention and values are free; a scale is at least 0."""
        return {name: value.clamp_min(0) if name == "scale" else value for name, value in phi.items()}

    def watched(self, phi: Phi, features: Tensor) -> tuple[str, Tensor]:
        return "gamma", self.gamma(phi, features)


def _rows(logits: Tensor, labels: Tensor, own: Conventions) -> Tensor:
    """-ln p of the label [N], or of every class [N, K] for soft labels."""
    if is_soft(labels):
        return -log_probs(logits)
    return negative_log_likelihood(logits, labels, own.ignore_index)


def _power(nll: Tensor, gamma: Tensor) -> Tensor:
    """(1 - p)^gamma, whose derivatives are finite at p = 1."""
    base = -torch.expm1(-nll)
    return base.clamp_min(math.sqrt(torch.finfo(nll.dtype).tiny)) ** gamma


def _mean_factor(factor: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """The mean of the factors over the rows that count."""
    if is_soft(labels):
        return (factor * labels.to(factor.dtype)).sum(1).mean().clamp_min(SMALL)
    ignored = labels == ignore_index
    return (factor.masked_fill(ignored, 0).sum() / (~ignored).sum()).clamp_min(SMALL)
