r"""The smallest log loss of a softmax over linear maps of features: one weight a class, or a whole matrix.

$\frac1N \sum_i -\ln p_{y_i} + \sum \Lambda (\theta - \theta_0)^2$ is convex in $\theta$. Few classes are fitted by
Newton's method, many by L-BFGS that is preconditioned with an approximate Hessian. Values and gradients are summed in
float64; rows are kept as blocks of columns that fit the cache. Rows of theta whose class has no label do not move, and
the other intercepts then have a mean of 0: else all of them would rise until nothing is left of that class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.calibration import warn

RIDGE = 1e-12
"""Added to every penalty: an optimum at infinity becomes a far one, and no direction is left without curvature."""

_BLOCK = 1 << 18  # elements
_NEWTON = 400  # parameters up to which the Hessian is factored
_WIDE64 = 1 << 15  # up to so many elements everything is float64; beyond, float32 comes close first
_NEAR, _CLOSE, _ENOUGH = 1e-5, 1e-8, 1e-11  # what is left to gain: for a comparison, for float32, at the end
_QUADRATIC = 1e-6  # what is left to gain where the Hessian hardly changes any more
_ROUNDS = 200
_MEMORY = 12
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
        """Theta with intercepts whose mean over the learned classes is 0, if there are others."""
        if bool(self.learned.all()):
            return theta
        mean = torch.where(self.learned, theta[:, -1:], 0).sum() / self.learned.sum()
        return torch.cat([theta[:, :-1], theta[:, -1:] - mean * self.learned], 1)

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
            a = a + weight[:, 0] + 1e-6 * a.mean()
            c = c + weight[:, 1] + 1e-6 * c.mean()
            inverse = (a * c - b * b).maximum(1e-9 * a * c).reciprocal()[:, None]

            def two(g: Tensor) -> Tensor:
                return torch.mul(
                    torch.stack([c * g[:, 0] - b * g[:, 1], a * g[:, 1] - b * g[:, 0]], 1), inverse
                )

            return two
        values, vectors = torch.linalg.eigh(moments)
        typical = (weight.sum(0) / k) @ vectors.square()
        spread = spread.maximum(1e-3 * spread.mean())
        scale = 1 / (spread[:, None] * values.clamp_min(1e-9 * float(values[-1])) + typical)

        def shared(g: Tensor) -> Tensor:
            return torch.mm((g @ vectors).mul_(scale), vectors.t())

        return shared

    def _probabilities(
        self, theta: Tensor, x: Tensor, labels: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.diagonal:
            eta = torch.addcmul(theta[:, 1:], x, theta[:, :1])
        else:
            eta = torch.addmm(theta[:, -1:], theta[:, :-1], x)
        if mask is not None:
            eta.masked_fill_(mask, -torch.inf)
        eta.sub_(eta.amax(0))
        at_label = eta.gather(0, labels)
        total = eta.exp_().sum(0)
        return eta.div_(total), total.log() - at_label[0]


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


def minimise(
    features: Tensor, labels: Tensor, mask: Tensor | None, penalty: Penalty, start: Tensor
) -> Tensor:
    """The theta of the smallest penalised loss, to all digits that matter: what is left to gain is below 1e-11."""
    diagonal = start.shape[1] == 2
    penalty = Penalty(penalty.weight + RIDGE, penalty.center)
    task = problem(features, labels, mask, diagonal)
    wide = features.numel() <= _WIDE64
    bent = task if wide else problem(features, labels, mask, diagonal, torch.float32)
    if start.numel() <= _NEWTON:
        start = start if wide else _newton(bent, bent, penalty, start, _CLOSE)
        return task.centered(_newton(task, bent, penalty, start, _ENOUGH))
    start = start if wide else _lbfgs(bent, penalty, start, _CLOSE)
    return task.centered(_lbfgs(task, penalty, start, _ENOUGH))


def approach(task: Problem, penalty: Penalty, start: Tensor) -> Tensor:
    """A theta about as good: what is left to gain is some 1e-5, enough for a comparison of penalties."""
    penalty = Penalty(penalty.weight + RIDGE, penalty.center)
    if start.numel() <= _NEWTON:
        return _newton(task, task, penalty, start, _NEAR)
    return _lbfgs(task, penalty, start, _NEAR)


def _newton(task: Problem, bent: Problem, penalty: Penalty, theta: Tensor, enough: float) -> Tensor:
    """Steps of Newton, halved until they help; the Hessian is that of `bent`, and near the end that of a step before.

    Only the gradient says where the end is, so that neither costs digits. To `_ENOUGH` all of them are found.
    """
    final = 1e-24 if enough == _ENOUGH else enough
    value, gradient = _total(task, penalty, theta)
    last, factors = math.inf, None
    for _ in range(_ROUNDS):
        if factors is None or last > _QUADRATIC:
            hessian = bent.hessian(theta)
            hessian.diagonal().add_(2 * penalty.weight.flatten())
            if bent.blocks[0][0].dtype == torch.float32:  # its rounding may bend a flat direction down
                hessian.diagonal().mul_(1 + 1e-5)
            factors = torch.linalg.lu_factor(hessian)
        step = torch.linalg.lu_solve(*factors, gradient.reshape(-1, 1)).view_as(theta)
        gain = float((step * gradient).sum())
        if not gain > 0:
            break
        size = 1.0
        while True:
            moved = theta - size * step
            new_value, new_gradient = _total(task, penalty, moved)
            # Close to the optimum the value is all rounding, and a full step is right.
            if (
                gain < max(1e-12, final / 100)
                or float(new_value) <= float(value) - 1e-4 * size * gain
                or size < 1e-10
            ):
                break
            size /= 2
        theta, value, gradient = moved, new_value, new_gradient
        if gain < final or (gain < 1e-16 and gain > last / 4):
            break
        last = gain
    return theta


def _lbfgs(task: Problem, penalty: Penalty, theta: Tensor, enough: float) -> Tensor:
    solve = task.preconditioner(theta, penalty)
    value, gradient = _total(task, penalty, theta)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(10 * _ROUNDS):
        step = _two_loops(pairs, gradient, solve)
        gain = float((step * gradient).sum())
        if gain < enough:
            break
        size = 1.0
        while True:
            moved = theta - size * step
            new_value, new_gradient = _total(task, penalty, moved)
            fall = float(value - new_value)
            if fall >= 1e-4 * size * gain:
                break
            if size < 1e-6:
                return theta  # rounding: nothing is left to be gained
            size *= min(0.5, max(0.1, size * gain / (2 * (size * gain - fall)))) if fall > -math.inf else 0.1
        change, bend = moved - theta, new_gradient - gradient
        curvature = (change * bend).sum()
        if float(curvature) > 0:
            pairs = [*pairs[-_MEMORY + 1 :], (change, bend, 1 / curvature)]
        theta, value, gradient = moved, new_value, new_gradient
    else:
        warn(f"the best map was not reached in {10 * _ROUNDS} steps; a stronger penalty has a nearer one")
    return theta


def _two_loops(
    pairs: Sequence[tuple[Tensor, Tensor, Tensor]], gradient: Tensor, solve: Callable[[Tensor], Tensor]
) -> Tensor:
    q = gradient
    kept = []
    for change, bend, inverse in reversed(pairs):
        alpha = inverse * (change * q).sum()
        q = q - alpha * bend
        kept.append(alpha)
    step = solve(q)
    if pairs:  # the scale along the last change corrects that of the preconditioner
        change, bend, inverse = pairs[-1]
        step = step / (inverse * (bend * solve(bend)).sum())
    for (change, bend, inverse), alpha in zip(pairs, reversed(kept), strict=True):
        step = step + change * (alpha - inverse * (bend * step).sum())
    return step


def _total(task: Problem, penalty: Penalty, theta: Tensor) -> tuple[Tensor, Tensor]:
    value, gradient = task.value_and_gradient(theta)
    more, pull = penalty.value_and_gradient(theta)
    return value + more, gradient + pull * task.learned
