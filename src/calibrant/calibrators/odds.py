"""How likely a class is against all others, without rounding away what is nearly certain."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_LOWEST = -1e4  # stands for the logarithm of 0 where a class has no rival left


def log_odds(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ln p and ln(1 - p) of each class, 0 where it is masked, and where it is not."""
    seen = logits > -torch.inf
    log_p = logits.log_softmax(1)
    top = logits.argmax(1, keepdim=True)
    rest = torch.where(seen, log_p, 0).exp().neg().log1p()
    others = log_p.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    rest = rest.scatter(1, top, others)
    zero = torch.zeros((), dtype=logits.dtype, device=logits.device)
    return torch.where(seen, log_p, zero), torch.where(seen, rest.clamp_min(_LOWEST), zero), seen


def top_log_odds(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The predicted class of each row, and ln p and ln(1 - p) of it."""
    log_p = logits.log_softmax(1)
    top = logits.argmax(1, keepdim=True)
    rest = log_p.scatter(1, top, -torch.inf).logsumexp(1).clamp_min(_LOWEST)
    return top[:, 0], log_p.gather(1, top)[:, 0], rest


def log_sigmoid(eta: Tensor) -> Tensor:
    """ln of 1 / (1 + exp(-eta)), in operations that round alike in every runtime: some have a coarse sigmoid."""
    return eta.clamp(max=0) - eta.abs().neg().exp().log1p()


def no_worse(
    theta: Tensor, identity: Tensor, apply: Callable[[Tensor], Tensor], logits: Tensor, labels: Tensor
) -> Tensor:
    """Theta, or half of its way from identity, and so on, until the renormalised log loss is not above that of logits.

    Classes that were fitted one by one need not be better together.
    """
    wide = logits.double()
    before = float(torch.nn.functional.cross_entropy(wide, labels.long()))
    for halvings in range(12):
        found = torch.lerp(identity.expand_as(theta), theta, 0.5**halvings)
        if float(torch.nn.functional.cross_entropy(apply(found).double(), labels.long())) <= before:
            return found
    return identity.repeat(len(theta), 1)
