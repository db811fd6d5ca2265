"""AdaFocal: a focal loss that reads each confidence bin's calibration from validation data once an epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.binning import check_bins, edges, mass_starts
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.numerics import row_pass, working_dtype
from calibrant.core.pointwise import check_batch, log_probs, modulated, negative_log_likelihood
from calibrant.core.registry import register
from calibrant.losses.focal import check_gamma
from calibrant.losses.target import TargetLoss, weighted


@register("losses", "adafocal", paper="ghosh2022adafocal")
@dataclass(frozen=True)
class AdaFocal(TargetLoss):
    r"""Adaptive focal loss: gamma rises where validation shows overconfidence, and falls where it does not.

    `init() -> state`, `loss(state, logits, labels)`, once an epoch `update(state, val_logits, val_labels) -> state`;
    the state is a tensor, each bin's upper edge and $\gamma_b$. With equal-mass bins of validation confidence and
    $E_b = \mathrm{conf}_b - \mathrm{acc}_b$, $|\gamma_b|$ is multiplied by $e^{\lambda E_b}$ (focal) or
    $e^{-\lambda E_b}$ (inverse focal, which is what a negative one means), $\lambda$ the rate; below `switch` the bin
    changes sides; all is clipped to [`low`, `high`]. A training row takes the bin of its $p_y$. Without a state
    it is `focal(gamma)`. It fails when validation is small: 15 bins of noise move 15 gammas.
    *Deviation:* bins are (l, u] as everywhere here, their edges midway between neighbours.
    """

    gamma: float = 1.0
    bins: int = 15
    rate: float = 1.0
    switch: float = 0.2
    low: float = -2.0
    high: float = 20.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)
        check_bins(self.bins)
        if not 0 < self.switch <= min(self.gamma, self.high, -self.low):
            raise CalibrantError(
                f"switch must lie above 0 and not beyond gamma, high or -low, not {self.switch:g}"
                f" with gamma={self.gamma:g}, high={self.high:g}, low={self.low:g}"
            )
        if not (self.gamma <= self.high and 0 <= self.rate < math.inf):
            raise CalibrantError("gamma must not exceed high, and rate must be finite and at least 0")

    def init(self) -> Tensor:
        """Equal-width bins with `gamma` in each: [2, bins], float64, upper edges and gammas."""
        return torch.stack([edges(self.bins)[1:], torch.full((self.bins,), self.gamma, dtype=torch.float64)])

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        return modulated(negative_log_likelihood(logits, labels, self.ignore_index), self.gamma)

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        return (modulated(-log_probs(logits), self.gamma) * weighted(targets, weight)).sum(1)

    def loss(self, state: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over the batch under a state, which may change in place between captured steps."""
        return _UnderState(state, weight=self.weight, ignore_index=self.ignore_index)(logits, labels)

    def update(self, state: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """The next state from validation predictions, which must have at least as many rows as there are bins."""
        check_batch(logits, labels)
        if len(logits) < self.bins:
            raise InputError(
                f"adafocal needs {self.bins} validation rows or more, one a bin, not {len(logits)}"
            )
        with torch.no_grad():
            rows = row_pass(logits, labels)
            confidence, order = rows.confidence.double().sort(stable=True)
            gap = confidence - rows.correct[order].double()
            starts = torch.from_numpy(mass_starts(len(gap), self.bins)).to(gap.device)
            inner = (confidence[starts[1:] - 1] + confidence[starts[1:]]) / 2
            sums = torch.cat([gap.new_zeros(1), gap.cumsum(0)])
            ends = torch.cat([starts[1:], starts.new_tensor([len(gap)])])
            error = ((sums[ends] - sums[starts]) / (ends - starts)).to(state.device, state.dtype)
            gamma = state[1]
            gamma = gamma * torch.exp(self.rate * torch.where(gamma > 0, error, -error))
            turned = torch.where(gamma > 0, -self.switch, self.switch).to(gamma.dtype)
            gamma = torch.where(gamma.abs() < self.switch, turned, gamma).clamp(self.low, self.high)
            upper = torch.cat([inner, inner.new_ones(1)]).to(state.device, state.dtype)
            return torch.stack([upper, gamma])


@dataclass(frozen=True)
class _UnderState(TargetLoss):
    """AdaFocal with its state put in; negative gammas mean the inverse focal loss."""

    state: Tensor

    def _modulated(self, nll: Tensor) -> Tensor:
        with torch.no_grad():
            state = self.state.to(nll.device, working_dtype(nll.dtype))
            gamma = state[1][torch.bucketize(torch.exp(-nll), state[0, :-1].contiguous())]
        return modulated(nll, gamma.abs(), gamma < 0)

    def hard(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self._modulated(negative_log_likelihood(logits, labels, self.ignore_index))

    def soft(self, logits: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        return (self._modulated(-log_probs(logits)) * weighted(targets, weight)).sum(1)
