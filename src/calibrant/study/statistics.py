"""What a few seeds can say: means, paired differences, two-sample tests, and Holm's correction for many of them.

Student's t is used throughout: with five seeds a bootstrap has too few values to draw from. SciPy has the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.05


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over seeds, with n - 1; one seed has none."""

    n: int
    mean: float
    sd: float | None


@dataclass(frozen=True)
class Difference:
    """A mean of n paired differences, its 95 % t interval and two-sided p.

    One pair has only the mean, none nothing. Differences that are all the same have no p either: a t-test would call
    them certain, and they only say that a grid was searched, as temperatures are.
    """

    n: int
    difference: float | None
    interval: tuple[float, float] | None
    p: float | None


def summary(values: Sequence[float]) -> Summary:
    """Mean ± standard deviation as the papers print them."""
    mean = math.fsum(values) / len(values)
    return Summary(len(values), mean, _sd(values, mean))


def paired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """The mean of a - b, pair by pair: what the seed does to both drops out."""
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    if not gaps:
        return Difference(0, None, None, None)
    n, mean = len(gaps), math.fsum(gaps) / len(gaps)
    sd = _sd(gaps, mean)
    if sd is None or (sd == 0 and mean != 0):
        return Difference(n, mean, None, None)
    error = sd / math.sqrt(n)
    half = _quantile(n - 1, 1 - LEVEL / 2) * error
    return Difference(n, mean, (mean - half, mean + half), _p(mean, error, n - 1))


def two_sample(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Student's two-sided p for equal means, with one variance for both, as document 002 tests; None for too few."""
    n = len(a) + len(b) - 2
    if min(len(a), len(b)) < 2:
        return None
    first, second = summary(a), summary(b)
    assert first.sd is not None
    assert second.sd is not None
    pooled = ((len(a) - 1) * first.sd**2 + (len(b) - 1) * second.sd**2) / n
    return _p(first.mean - second.mean, math.sqrt(pooled * (1 / len(a) + 1 / len(b))), n)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p: below 0.05 for any only with a chance of 5 % if nothing is there."""
    adjusted = [0.0] * len(ps)
    worst = 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        worst = max(worst, min(1.0, (len(ps) - place) * ps[index]))
        adjusted[index] = worst
    return adjusted


def _sd(values: Sequence[float], mean: float) -> float | None:
    if len(values) < 2:
        return None
    if len(set(values)) == 1:  # a mean that is rounded would make a tiny spread of none
        return 0.0
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _p(mean: float, error: float, freedom: int) -> float | None:
    """Two-sided; without any spread there is no test, unless there is no difference either."""
    from scipy.special import stdtr

    if error == 0:
        return 1.0 if mean == 0 else None
    return 2 * float(stdtr(freedom, -abs(mean / error)))


def _quantile(freedom: int, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, level))
