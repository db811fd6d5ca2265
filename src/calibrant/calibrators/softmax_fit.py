r"""The smallest penalised log loss of a softmax over linear maps, to all digits that matter.

Few parameters are fitted by Newton's method. For many, Newton's equations are solved by conjugate gradients, which need
products with the Hessian and not the Hessian: a class that its weight parts from the others without error has its
optimum far off, and curvature on the way there falls by orders of magnitude. A matrix comes close by L-BFGS first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from calibrant.calibrators.softmax_loss import Penalty, Problem, problem
from calibrant.core.calibration import warn

RIDGE = 1e-12
"""Added to every penalty: an optimum at infinity becomes a far one, and no direction is left without curvature."""

_NEWTON = 400  # parameters up to which the Hessian is factored
_WIDE64 = 1 << 15  # up to so many elements everything is float64; beyond, float32 comes close first
_NEAR, _CLOSE, _ENOUGH = 1e-5, 1e-8, 1e-11  # what is left to gain: for a comparison, for float32, at the end
_QUADRATIC = 1e-6  # what is left to gain where the Hessian hardly changes any more
_ROUNDS = 200
_MEMORY = 12
_PRODUCTS = 300  # with the Hessian in one step
_INEXACT = 0.1  # the share of the gradient that a step may leave


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
        start = task.centered(_newton(task, bent, penalty, start, _ENOUGH))
    elif not diagonal:
        start = start if wide else _lbfgs(bent, penalty, start, _CLOSE)
        start = _lbfgs(task, penalty, start, _ENOUGH)
    elif not wide:
        start = _newton_cg(bent, bent, penalty, start, _CLOSE)
    return task.centered(_newton_cg(task, bent, penalty, start, _ENOUGH))


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


def _newton_cg(task: Problem, bent: Problem, penalty: Penalty, theta: Tensor, enough: float) -> Tensor:
    """Steps of Newton by conjugate gradients, halved until they help; the Hessian is that of `bent`."""
    value, gradient = _total(task, penalty, theta)
    for _ in range(_ROUNDS):
        step = _conjugate(bent, penalty, theta, gradient)
        gain = float((step * gradient).sum())
        if gain < enough:
            return theta
        size = 1.0
        while True:
            moved = theta - size * step
            new_value, new_gradient = _total(task, penalty, moved)
            fall = float(value - new_value)
            if fall >= 1e-4 * size * gain:
                break
            if size < 1e-6:
                return theta  # rounding: nothing is left to be gained
            size *= _shorter(size * gain, fall)
        theta, value, gradient = moved, new_value, new_gradient
    _late()
    return theta


def _conjugate(task: Problem, penalty: Penalty, theta: Tensor, gradient: Tensor) -> Tensor:
    """The step of Newton, but for a tenth of the gradient in the norm of the preconditioner."""
    solve, product = task.preconditioner(theta, penalty), task.curvature(theta)
    pull = 2 * penalty.weight * task.learned
    step, rest = torch.zeros_like(theta), gradient
    solved = solve(rest)
    direction, size = solved, float((rest * solved).sum())
    first = size
    for _ in range(_PRODUCTS):
        bend = product(direction) + pull * direction
        curvature = float((direction * bend).sum())
        if not curvature > 0:  # rounding
            break
        step = step + size / curvature * direction
        rest = rest - size / curvature * bend
        solved = solve(rest)
        left = float((rest * solved).sum())
        if not left > _INEXACT**2 * first:
            break
        direction, size = solved + left / size * direction, left
    return step


def _lbfgs(task: Problem, penalty: Penalty, theta: Tensor, enough: float) -> Tensor:
    """Steps of L-BFGS, preconditioned by the Hessian of where it begins, roughly; good to come close."""
    solve = task.preconditioner(theta, penalty)
    value, gradient = _total(task, penalty, theta)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(_ROUNDS):
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
            size *= _shorter(size * gain, fall)
        change, bend = moved - theta, new_gradient - gradient
        curvature = (change * bend).sum()
        if float(curvature) > 0:
            pairs = [*pairs[-_MEMORY + 1 :], (change, bend, 1 / curvature)]
        theta, value, gradient = moved, new_value, new_gradient
    return theta


def _shorter(gain: float, fall: float) -> float:
    """The share of a step that is too long which a parabola through its fall asks for."""
    return min(0.5, max(0.1, gain / (2 * (gain - fall)))) if fall > -math.inf else 0.1


def _late() -> None:
    warn("the best map was not reached in the steps that are allowed; a stronger penalty has a nearer one")


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
