"""Mixup: training on straight lines between pairs of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register


@dataclass(frozen=True)
class Pairing:
    """What one batch is mixed by: the share of each sample itself, and the partner of each."""

    share: Tensor
    partner: Tensor


@register("augment", "mixup", paper="zhang2018mixup")
@dataclass(frozen=True)
class Mixup:
    r"""Mixup: inputs and labels are mixed by one share, so that no target is certain and confidence falls.

    $\tilde x = \lambda x_i + (1 - \lambda) x_j$, $\tilde q = \lambda q_i + (1 - \lambda) q_j$, one
    $\lambda \sim \mathrm{Beta}(\alpha, \alpha)$ a batch and j a permutation of it. Alpha 0 mixes nothing; a large one
    averages pairs, and the network then ends underconfident on clean data. Targets become soft [N, K]: every loss that
    says it takes soft targets can follow, and surrogates that need correctness cannot. `draw` uses randomness and runs
    outside of a captured step; `mix` is arithmetic on tensors and runs inside.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise CalibrantError(f"alpha must be finite and at least 0, not {self.alpha:g}")

    def draw(self, rows: int, generator: torch.Generator) -> Pairing:
        """The share and the partners of a batch, on the generator's device."""
        device = generator.device
        partner = torch.randperm(rows, generator=generator, device=device)
        uniform = torch.rand((), generator=generator, dtype=torch.float64, device=device)
        if self.alpha == 0:
            return Pairing(torch.ones_like(uniform), partner)
        from scipy.special import betaincinv

        share = float(betaincinv(self.alpha, self.alpha, float(uniform)))
        return Pairing(torch.as_tensor(share, dtype=uniform.dtype, device=device), partner)

    def mix(self, values: Tensor, pairing: Pairing) -> Tensor:
        """Inputs [N, ...] or targets [N, K] mixed; the dtype is kept."""
        share = pairing.share.to(values.device, values.dtype)
        return torch.lerp(values[pairing.partner.to(values.device)], values, share)

    def __call__(
        self, inputs: Tensor, labels: Tensor, classes: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Mixed inputs and soft targets [N, classes], from class indices [N] or from soft labels."""
        pairing = self.draw(len(inputs), generator)
        dtype = inputs.dtype if inputs.is_floating_point() else torch.float32
        soft = labels if labels.is_floating_point() else F.one_hot(labels, classes).to(dtype)
        return self.mix(inputs.to(dtype), pairing), self.mix(soft, pairing)
