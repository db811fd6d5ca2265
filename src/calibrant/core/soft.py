"""Differentiable parts of calibration errors: what the surrogates share among them and with the metrics.

Everything here has a finite gradient wherever the logits are finite, is twice differentiable almost everywhere,
keeps dtype and device, and never waits for the device: shapes do not depend on values, so that a CUDA graph can
hold it. Of rows against rows at most BLOCK at a time exist beyond what autograd keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

BLOCK = 2048
FLOOR = -1e6  # no logarithm of a probability falls below it, so that 0 times a logarithm is 0 and not NaN


class TopLabel(NamedTuple):
    """Logarithms of the top probability and of all the others together, and whether the top class is right."""

    log_confidence: Tensor
    log_rest: Tensor
    correct: Tensor

    @property
    def confidence(self) -> Tensor:
        """The top probability."""
        return self.log_confidence.exp()


def top_label(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Confidence [N], with its gradient, and correctness [N] as 0 or 1, a constant."""
    top, index = logits.max(dim=1)
    return (top - logits.logsumexp(1)).exp(), (index == labels).to(logits.dtype)


def top_label_logs(logits: Tensor, labels: Tensor) -> TopLabel:
    """The same from logarithms: exact where the confidence itself has rounded to 1."""
    top, index = logits.max(dim=1)
    total = logits.logsumexp(1)
    others = logits.scatter(1, index[:, None], -torch.inf)
    rest = (others.logsumexp(1) - total).clamp_min(FLOOR)
    return TopLabel(top - total, rest, (index == labels).to(logits.dtype))


def all_pairs_accuracy(logits: Tensor, labels: Tensor, t_acc: float) -> Tensor:
    """Soft correctness [N] from the soft rank of the true class, which needs only its own row of all pairs.

    max(0, 1 - sum over k != y of sigmoid(t_acc (p_k - p_y))): N x K numbers, and no N x K x K.
    """
    probs = logits.softmax(1)
    true = labels[:, None]
    behind = (probs - probs.gather(1, true)).scatter(1, true, -torch.inf)
    return (1 - (t_acc * behind).sigmoid().sum(1)).clamp_min(0)


def row_blocks(rows: int) -> Iterator[slice]:
    """Ranges of at most BLOCK rows."""
    for start in range(0, rows, BLOCK):
        yield slice(start, min(start + BLOCK, rows))


def smoothed(log_kernel: Callable[[slice], Tensor], values: Tensor, *, leave_one_out: bool) -> Tensor:
    """Nadaraya-Watson means of `values` at every row: weights are the kernel's, normalised over the rows.

    `log_kernel` gives some rows of ln K(row i, row j) up to a number for each i. With `leave_one_out` no row
    counts for itself; a row without others has no mean, and the caller has to ask for at least two.
    """
    n = len(values)
    column = torch.arange(n, device=values.device)
    means = []
    for rows in row_blocks(n):
        logs = log_kernel(rows)
        if leave_one_out:
            logs = logs.masked_fill(column[rows, None] == column, -torch.inf)
        means.append(product(logs.softmax(1), values))
    return torch.cat(means)


def gaussian_log_kernel(at: Tensor, bandwidth: float) -> Callable[[slice], Tensor]:
    """ln exp(-(x_i - x_j)^2 / 2 h^2)."""
    return lambda rows: -0.5 * ((at[rows, None] - at) / bandwidth) ** 2


def beta_log_kernel(top: TopLabel, bandwidth: float) -> Callable[[slice], Tensor]:
    """ln Beta(c_i; c_j/h + 1, (1 - c_j)/h + 1), without the factor that all pairs have in common."""
    right, wrong = top.confidence / bandwidth, top.log_rest.exp() / bandwidth
    size = torch.lgamma(right + 1) + torch.lgamma(wrong + 1)

    def rows_of(rows: slice) -> Tensor:
        return top.log_confidence[rows, None] * right + top.log_rest[rows, None] * wrong - size

    return rows_of


def dirichlet_log_kernel(logits: Tensor, bandwidth: float) -> Callable[[slice], Tensor]:
    """ln Dirichlet(p_i; p_j/h + 1), without the factor that all pairs have in common."""
    log_p = logits.log_softmax(1).clamp_min(FLOOR)
    alpha = log_p.exp() / bandwidth
    size = torch.lgamma(alpha + 1).sum(1)
    return lambda rows: product(log_p[rows], alpha.T) - size


def log_soft_bins(confidence: Tensor, bins: int, temperature: float) -> Tensor:
    """ln membership [N, bins]: softmax over the bins of minus the squared distance to their centres / temperature.

    The soft bins of DECE are these: (b+1) c - b(b+1)/2B = c/2 - (B/2) (c - m_b)^2 up to a constant, so that its
    temperature t is 2t/B here.
    """
    centre = (torch.arange(bins, dtype=confidence.dtype, device=confidence.device) + 0.5) / bins
    return (-((confidence[:, None] - centre) ** 2) / temperature).log_softmax(1)


def laplace_form(at: Tensor, vectors: Tensor, width: float) -> Tensor:
    """V' K V [m, m] for V [N, m] and K_ij = exp(-|x_i - x_j| / width), which is positive definite."""
    total = vectors.new_zeros(vectors.shape[1], vectors.shape[1])
    for rows in row_blocks(len(at)):
        kernel = (-(at[rows, None] - at).abs() / width).exp()
        reached = torch.stack([product(kernel, column) for column in vectors.unbind(1)], 1)
        total = total + (vectors[rows, :, None] * reached[:, None, :]).sum(0)
    return total


def entropy(logits: Tensor, eps: float = 0.0) -> Tensor:
    """Entropy [N] of the softmax in nats; with `eps`, of the softmax mixed with that much of the uniform one."""
    log_p = logits.log_softmax(1).clamp_min(FLOOR)
    if eps:
        mixed = (1 - eps) * log_p.exp() + eps / logits.shape[1]
        return -(mixed * mixed.log()).sum(1)
    return -(log_p.exp() * log_p).sum(1)


def root(value: Tensor, order: float = 2.0) -> Tensor:
    """value^(1/order); 0 with gradient 0 where the value is not positive, rather than an infinite one."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1).pow(1 / order), 0)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Inside it, autocast is off."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def product(matrix: Tensor, other: Tensor) -> Tensor:
    """A matrix times a vector or matrix, whose gradient too is computed in full precision when autocast is on.

    Autocast acts on what the backward pass calls, if that runs inside it, and would make these products bfloat16.
    """
    result: Tensor = _Product.apply(matrix, other)  # type: ignore[no-untyped-call]
    return result


class _Product(Function):
    @staticmethod
    def forward(matrix: Tensor, other: Tensor) -> Tensor:
        return matrix @ other

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        matrix, other = ctx.saved_tensors
        (grad,) = grads
        left = right = None
        with full_precision(grad.device):
            if ctx.needs_input_grad[0]:
                left = grad[:, None] * other if other.ndim == 1 else product(grad, other.T)
            if ctx.needs_input_grad[1]:
                right = product(matrix.T, grad)
        return left, right
