r"""How strongly a matrix is pulled towards temperature scaling: a path of penalties, judged on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from calibrant.calibrators.affine_start import Start
from calibrant.calibrators.softmax_fit import approach, minimise
from calibrant.calibrators.softmax_loss import Penalty, Problem, problem
from calibrant.core.errors import CalibrantError
from calibrant.core.rows import fold_of

VARIANCES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""How much variance each part of a matrix may add to a calibrated logit, from near temperature scaling to free."""

SURE = 2.0
"""How many standard errors of gain on held-out rows it takes to leave temperature scaling."""


def by_cross_validation(
    start: Start, labels: Tensor, at: Callable[[float, int], Penalty], count: int
) -> Tensor:
    """The theta of the best penalty, or temperature scaling where nothing is surely better.

    `at` gives the penalty of a variance and a number of rows. The path ends where the loss on held-out rows rises.
    """
    n = len(labels)
    if n < 2 * count:
        return start.theta
    where = fold_of(start.x, labels, count)
    parts = [(_part(start, labels, where != fold), where == fold) for fold in range(count)]
    thetas = [start.theta] * count
    plain = best = _losses(start, labels, thetas, [held for _, held in parts])
    chosen, near = None, start.theta
    for variance in VARIANCES:
        thetas = [
            approach(task, at(variance, task.rows), theta)
            for theta, (task, _) in zip(thetas, parts, strict=True)
        ]
        losses = _losses(start, labels, thetas, [held for _, held in parts])
        if float((losses - best).mean()) >= 0:
            if chosen is not None or float((losses - plain).mean()) > SURE * _error(losses - plain):
                break
            continue
        best, chosen, near = losses, variance, torch.stack(thetas).mean(0)
    if chosen is None or float((plain - best).mean()) <= SURE * _error(plain - best):
        return start.theta
    return minimise(start.x, labels, start.mask, at(chosen, n), near)


def check_folds(folds: int) -> None:
    """Refuse a number of folds that is none."""
    if not 2 <= folds <= 100:
        raise CalibrantError(f"folds must lie between 2 and 100, not {folds}")


def _part(start: Start, labels: Tensor, rows: Tensor) -> Problem:
    mask = None if start.mask is None else start.mask[rows]
    return problem(start.x[rows], labels[rows], mask, diagonal=False, dtype=torch.float32)


def _error(difference: Tensor) -> float:
    """The standard error of a mean."""
    return float(difference.std() / math.sqrt(len(difference)))


def _losses(start: Start, labels: Tensor, thetas: Sequence[Tensor], held: Sequence[Tensor]) -> Tensor:
    """The log loss of each row under the theta that was fitted without it."""
    found = torch.empty(len(labels), dtype=torch.float64, device=start.x.device)
    for theta, rows in zip(thetas, held, strict=True):
        eta = start.x[rows].double() @ theta[:, :-1].t() + theta[:, -1]
        if start.mask is not None:
            eta.masked_fill_(start.mask[rows], -torch.inf)
        found[rows] = torch.nn.functional.cross_entropy(eta, labels[rows].long(), reduction="none")
    return found
