"""What losses of single rows share: widening, hard and soft targets, and the focal family's modulating factor.

Everything here runs without a host synchronisation and without shapes that depend on data, so that a training step
can be captured in a CUDA graph. Half precisions are computed in float32, float32 and float64 in themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.core.numerics import working_dtype

VJP = Callable[[Tensor], Tensor]


def widen(logits: Tensor) -> Tensor:
    """float64 stays, everything else becomes float32."""
    dtype = working_dtype(logits.dtype)
    return logits if logits.dtype == dtype else logits.to(dtype)


def is_soft(labels: Tensor) -> bool:
    """Whether labels are a distribution over the classes in each row; the dtype says so, never the values."""
    return labels.is_floating_point()


def check_batch(logits: Tensor, labels: Tensor) -> None:
    """Refuse shapes and dtypes that cannot be meant; the values are not looked at, which would cost a sync."""
    if logits.ndim != 2 or not logits.is_floating_point():
        raise InputError(
            f"logits must be floating point [N, K], not {_shown(logits)}; flatten other dimensions first"
        )
    if is_soft(labels):
        if labels.shape != logits.shape:
            raise InputError(
                f"soft labels must be {list(logits.shape)} like the logits, not {_shown(labels)}"
            )
    elif labels.shape != logits.shape[:1] or labels.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise InputError(f"labels must be {len(logits)} class indices, not {_shown(labels)}")


def negative_log_likelihood(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """-ln p_y of each row [N], and 0 in the rows whose label is `ignore_index`."""
    return F.cross_entropy(logits, labels, reduction="none", ignore_index=ignore_index)


def log_probs(logits: Tensor) -> Tensor:
    """ln softmax, where the class of a -inf logit gets the lowest finite number, so that 0 * ln 0 is 0."""
    log_p = logits.log_softmax(1)
    return log_p.clamp_min(torch.finfo(log_p.dtype).min / 4)


def row_norm(values: Tensor, p: float = 2) -> Tensor:
    """The p-norm of each row [N, 1]; where all are 0, so is its gradient."""
    norm: Tensor = torch.linalg.vector_norm(values, p, dim=1, keepdim=True)
    return norm


def modulated(nll: Tensor, gamma: float | Tensor, inverse: bool | Tensor = False) -> Tensor:
    r"""$-(1 - p)^\gamma \ln p$ of the focal loss from $-\ln p$, or $-(1 + p)^\gamma \ln p$ where it is inverse.

    `gamma` and `inverse` may be tensors, one entry a row, and the gradient flows to a `gamma` that asks for it, which
    is what gamma-Net needs. Safe powers: no gradient of first or second order is infinite at p = 1, whatever gamma.
    """

    def plain(x: Tensor) -> Tensor:
        return _base(x, gamma, inverse)[0] ** gamma * x

    def slope(x: Tensor) -> tuple[Tensor, VJP]:
        base, p = _base(x, gamma, inverse)
        power = base ** (gamma - 1)
        factor = power * base
        rising = p * x  # p (-ln p): how fast the factor changes with x, times x
        if isinstance(inverse, Tensor):
            rising = torch.where(inverse, -rising, rising)
        signed = -gamma if inverse is True else gamma
        if isinstance(signed, Tensor):
            grad = factor + signed * power * rising
        else:
            grad = torch.addcmul(factor, power, rising, value=signed)
        return factor * x, lambda g: g * grad

    if isinstance(gamma, Tensor) and gamma.requires_grad:
        return plain(nll)
    if not isinstance(gamma, Tensor) and gamma == 0:
        return nll
    return fused(nll, slope, plain)


def modulating_factor(nll: Tensor, gamma: float, inverse: bool = False) -> Tensor:
    """(1 - p)^gamma, or (1 + p)^gamma, as a constant: what a detached focal loss multiplies with."""
    with torch.no_grad():
        return _base(nll, gamma, inverse)[0] ** gamma


def _base(nll: Tensor, gamma: float | Tensor, inverse: bool | Tensor) -> tuple[Tensor, Tensor]:
    """1 - p (or 1 + p) and p, from -ln p; 1 - p keeps its digits near 0 and never reaches it where that matters."""
    minus = torch.expm1(-nll)  # p - 1
    p = minus + 1
    if inverse is True:
        return p + 1, p
    base = -minus
    if isinstance(gamma, Tensor) or (
        gamma < 2 and gamma != 1
    ):  # else 0 has infinite derivatives, of some order
        base = base.clamp_min(math.sqrt(torch.finfo(nll.dtype).tiny))
    return (torch.where(inverse, p + 1, base) if isinstance(inverse, Tensor) else base), p


class _Fused(torch.autograd.Function):
    """A function with a gradient by hand for first order, and its plain definition for any higher one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, quick: Callable[[Tensor], tuple[Tensor, VJP]], plain: VJP) -> Tensor:
        value, ctx.vjp = quick(x)
        ctx.save_for_backward(x)
        ctx.plain = plain
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if not torch.is_grad_enabled():
            return ctx.vjp(grads[0]), None, None
        (x,) = ctx.saved_tensors  # create_graph: this gradient will be differentiated again
        (grad,) = torch.autograd.grad(ctx.plain(x), x, grads[0], create_graph=True)
        return grad, None, None


def fused(x: Tensor, quick: Callable[[Tensor], tuple[Tensor, VJP]], plain: VJP) -> Tensor:
    """`plain(x)`, whose first gradient is computed by hand in fewer passes: `quick(x)` is the value and g -> g * slope.

    The plain form runs where something else differentiates or fuses: higher orders, `torch.compile`, `torch.func`.
    """
    if not (x.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_compiling() or _transformed():
        return plain(x)
    value: Tensor = _Fused.apply(x, quick, plain)  # type: ignore[no-untyped-call]
    return value


def _transformed() -> bool:
    """Whether a torch.func transform is active, which cannot see through a function with a gradient by hand."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return bool(active()) if active is not None else False


def class_weights(weight: tuple[float, ...] | None, logits: Tensor) -> Tensor | None:
    """The weights as a tensor beside the logits."""
    if weight is None:
        return None
    if len(weight) != logits.shape[1]:
        raise InputError(f"weight has {len(weight)} entries, and the logits have {logits.shape[1]} classes")
    return constants(weight, logits)


def constants(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Numbers as a tensor beside another one, made once and kept: a captured step can neither copy nor lose it."""
    if type(like) not in (Tensor, torch.nn.Parameter):
        # a fake tensor's neighbour is fake, and must not be kept for real ones
        return torch.tensor(values, dtype=like.dtype, device=like.device)
    return _constants(values, like.dtype, like.device)


@cache
def _constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def _shown(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {list(values.shape)}"
