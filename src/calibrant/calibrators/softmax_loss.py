r"""The log loss of a softmax over linear maps of features: one weight a class, or a whole matrix.

$\frac1N \sum_i -\ln p_{y_i} + \sum \Lambda (\theta - \theta_0)^2$ is convex in $\theta$. This is the loss and its
derivatives; `softmax_fit` finds the minimum. Values and gradients are summed in float64; rows are kept as blocks of
columns that fit the cache. Rows of theta whose class has no label do not move. The other intercepts have a mean of 0:
else all of them would rise until nothing is left of such a class, and without one their mean changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 1 << 18  # elements
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-13}  # how flat a block of two may seem without being so
Blocks = Sequence[tuple[Tensor, Tensor, Tensor | None]]


@dataclass(frozen=True)
class Penalty:
    """Weights of squares and where they are 0, both in the shape of theta."""

    weight: Tensor
    center: Tensor

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of squares and its derivative."""
        off = theta - self.center
        pull = self.weight * off
        return (pull * off).sum(), 2 * pull


@dataclass(frozen=True)
class Problem:
    """Rows as blocks [K, n] of features, labels and masks; theta is [K, 2] (weight, bias) or [K, K + 1] (row, bias)."""

    blocks: Blocks
    rows: int
    diagonal: bool
    learned: Tensor
    """Which rows of theta move: the classes that have a label."""

    def value_and_gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """The mean log loss and its derivative, in float64."""
        value = theta.new_zeros(())
        gradient = torch.zeros_like(theta)
        cast = self.centered(theta).to(self.blocks[0][0].dtype)
        for x, labels, mask in self.blocks:
            p, nll = self._probabilities(cast, x, labels, mask)
            value += nll.sum(dtype=torch.float64)
            p.scatter_add_(0, labels, p.new_full((), -1).expand_as(labels))
            gradient[:, -1] += p.sum(1)
            if self.diagonal:
                gradient[:, 0] += torch.linalg.vecdot(p, x)
            else:
                gradient[:, :-1] += p @ x.t()
        return value / self.rows, self.centered(gradient / self.rows * self.learned)

    def hessian(self, theta: Tensor) -> Tensor:
        """The second derivative as a matrix over the flattened theta."""
        k, d = theta.shape
        full = theta.new_zeros(k * d, k * d)
        own = theta.new_zeros(k, d, d)
        cast = self.centered(theta).to(self.blocks[0][0].dtype)
        for x, labels, mask in self.blocks:
            p, _ = self._probabilities(cast, x, labels, mask)
            if self.diagonal:
                both = torch.stack([x, torch.ones_like(x)], 1)  # [K, 2, n]
                spread = both * p[:, None]
                own += spread @ both.transpose(1, 2)
            else:
                one = torch.cat([x, torch.ones_like(x[:1])])
                spread = p[:, None] * one
                own += spread @ one.t()
            flat = spread.reshape(k * d, -1)
            full -= flat @ flat.t()
        place = torch.arange(k, device=theta.device)
        full.view(k, d, k, d)[place, :, place, :] += own
        still = (~self.learned.expand(k, d)).flatten()
        full /= self.rows
        if not bool(still.any()):
            return full
        full[still] = 0
        full[:, still] = 0
        for _ in range(2):  # from both sides
            full = torch.stack([self.centered(row) for row in full.view(-1, k, d)]).view_as(full).t()
        full.diagonal()[still] = 1
        return full

    def centered(self, theta: Tensor) -> Tensor:
        """Theta with intercepts whose mean over the learned classes is 0."""
        mean = torch.where(self.learned, theta[:, -1:], 0).sum() / self.learned.sum()
        return torch.cat([theta[:, :-1], theta[:, -1:] - mean * self.learned], 1)

    def curvature(self, theta: Tensor) -> Callable[[Tensor], Tensor]:
        """The second derivative at theta as a product with it; probabilities are kept, one a row and class.

        Changes of logits are taken beside that of the label, so that rows which are nearly certain keep their digits.
        """
        cast = self.centered(theta).to(self.blocks[0][0].dtype)
        kept = [self._probabilities(cast, x, labels, mask)[0] for x, labels, mask in self.blocks]

        def product(direction: Tensor) -> Tensor:
            v = self.centered(direction * self.learned).to(cast.dtype)
            found = torch.zeros_like(theta)
            for p, (x, labels, _) in zip(kept, self.blocks, strict=True):
                moved = self._linear(v, x)
                moved -= moved.gather(0, labels)
                moved -= torch.linalg.vecdot(p, moved, dim=0)
                moved *= p
                found[:, -1] += moved.sum(1)
                if self.diagonal:
                    found[:, 0] += torch.linalg.vecdot(moved, x)
                else:
                    found[:, :-1] += moved @ x.t()
            return self.centered(found / self.rows * self.learned)

        return product

    def preconditioner(self, theta: Tensor, penalty: Penalty) -> Callable[[Tensor], Tensor]:
        """An approximate inverse of the Hessian, for many classes.

        Weight and bias of a class make a block of two; the rows of a matrix share the second moments of the features,
        each with the mean of p (1 - p) of its class.
        """
        k = len(theta)
        cast = theta.to(self.blocks[0][0].dtype)
        moments = theta.new_zeros(k, 3) if self.diagonal else theta.new_zeros(k + 1, k + 1)
        spread = theta.new_zeros(k)
        for x, labels, mask in self.blocks:
            p, _ = self._probabilities(cast, x, labels, mask)
            p -= p * p
            spread += p.sum(1)
            if self.diagonal:
                px = p * x
                moments += torch.stack([torch.linalg.vecdot(px, x), px.sum(1), p.sum(1)], 1)
            else:
                one = torch.cat([x, torch.ones_like(x[:1])])
                moments += one @ one.t()
        moments, spread = moments / self.rows, spread / self.rows
        weight = 2 * penalty.weight
        if self.diagonal:
            a, b, c = moments.unbind(1)
            a, c = a + weight[:, 0], c + weight[:, 1]
            inverse = (a * c - b * b).maximum(_ROUNDING[cast.dtype] * a * c).reciprocal()[:, None]

            def two(g: Tensor) -> Tensor:
                solved = torch.stack([c * g[:, 0] - b * g[:, 1], a * g[:, 1] - b * g[:, 0]], 1)
                return self.centered(solved.mul_(inverse))

            return two
        values, vectors = torch.linalg.eigh(moments)
        typical = (weight.sum(0) / k) @ vectors.square()
        spread = spread.maximum(1e-3 * spread.mean())
        scale = 1 / (spread[:, None] * values.clamp_min(1e-9 * float(values[-1])) + typical)

        def shared(g: Tensor) -> Tensor:
            return self.centered(torch.mm((g @ vectors).mul_(scale), vectors.t()))

        return shared

    def _probabilities(
        self, theta: Tensor, x: Tensor, labels: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        eta = self._linear(theta, x)
        if mask is not None:
            eta.masked_fill_(mask, -torch.inf)
        eta.sub_(eta.amax(0))
        at_label = eta.gather(0, labels)
        total = eta.exp_().sum(0)
        return eta.div_(total), total.log() - at_label[0]

    def _linear(self, theta: Tensor, x: Tensor) -> Tensor:
        if self.diagonal:
            return torch.addcmul(theta[:, 1:], x, theta[:, :1])
        return torch.addmm(theta[:, -1:], theta[:, :-1], x)


def problem(
    features: Tensor, labels: Tensor, mask: Tensor | None, diagonal: bool, dtype: torch.dtype = torch.float64
) -> Problem:
    """Rows [N, K] of features made ready; masked features are finite already."""
    n, k = features.shape
    step = max(1, _BLOCK // k)
    blocks = [
        (
            features[i : i + step].t().to(dtype, copy=True, memory_format=torch.contiguous_format),
            labels[i : i + step].long()[None],
            None if mask is None else mask[i : i + step].t().contiguous(),
        )
        for i in range(0, n, step)
    ]
    seen = torch.bincount(labels.long(), minlength=k) > 0
    return Problem(blocks, n, diagonal, seen[:, None])
