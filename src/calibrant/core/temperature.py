r"""The best temperature for given logits: exactly the minimum of the log loss, or the first minimum of ECE on a grid.

With $D_j = z_j - \max_k z_k$ and $\beta = 1/T$, the mean log loss is convex in $\beta$; its derivatives are
$\frac{1}{N} \sum_i (E_p[D] - D_y)$ and the mean variance of D under p. Newton's method finds the root of the first,
within a bracket. Rows are read in blocks that stay in the cache, sums are float64, and the device is waited for once
an iteration. Both functions are used by calibrators and by the training loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.binning import ONE, check_bins, width_index
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.numerics import working_dtype

GRID = tuple(step / 100 for step in range(1, 1001))
"""Document 002's grid of temperatures: 0.01, 0.02, ..., 10."""

FARTHEST = 1e3
"""Where the best temperature is 0 or infinite, T is the largest difference of logits divided or multiplied by this."""

_NARROW = 64  # up to so many classes a block is transposed, so that sums over classes are sums of vectors
_WIDE64 = 1 << 20  # up to so many elements everything is float64
_SAMPLE = 1 << 21  # elements of the rows on which a large fit is begun
_ROUNDS = 100
_SPAN = 1e15  # squares of differences from its inverse to it are float32 numbers
_FARTHEST_STEP = 7.0  # in ln T
_SMALL_STEP = 3e-5  # the error after a Newton step in ln T of this size is its square times some tens at most
_NOISE = 2e-7  # the error in ln T by float32 arithmetic from which the last steps are in float64


@dataclass(frozen=True)
class TemperatureFit:
    """The best temperature; `bound` says why where that is 0 or infinite, and `temperature` is what is used instead."""

    temperature: float
    bound: str | None = None


def fit_temperature(logits: Tensor, labels: Tensor) -> TemperatureFit:
    """The temperature T > 0 with the smallest mean log loss of softmax(logits / T): ln T to within 1e-6.

    A -inf logit masks a class, but never the true one. Where no finite T > 0 is best, `bound` says so. Logits of any
    scale are fitted; a T that is no normal number of their precision is refused.
    """
    known, power = _survey(logits, labels), 0
    if not known.finite:  # a sum or a difference may have overflowed
        power = 64
        known = _survey(_scaled(logits, -power), labels)
    if not known.finite:
        raise InputError("logits must be finite, or -inf for a class that is masked and not the true one")
    if known.largest and not 1 / _SPAN <= known.largest <= _SPAN:
        power += math.frexp(known.largest)[1]
    if not power:
        return _fit(logits, labels, known)
    scaled = _scaled(logits, -power)
    fit = _fit(scaled, labels, _survey(scaled, labels))
    mantissa, exponent = math.frexp(fit.temperature)
    limits = torch.finfo(scaled.dtype)
    lowest, highest = math.frexp(limits.tiny)[1], math.frexp(limits.max)[1]
    if not lowest <= exponent + power <= highest:
        raise InputError(
            f"the best temperature of these logits is beyond {str(scaled.dtype).removeprefix('torch.')};"
            f" {'divide' if power > 0 else 'multiply'} all logits by one large number first"
        )
    return TemperatureFit(math.ldexp(mantissa, exponent + power), fit.bound)


def _fit(logits: Tensor, labels: Tensor, known: _Known) -> TemperatureFit:
    """The same for logits of a scale at which nothing overflows."""
    if known.largest == 0:
        return TemperatureFit(
            1.0, "the logits of each row are equal, so that no temperature changes anything"
        )
    if known.right:
        return TemperatureFit(
            known.largest / FARTHEST, "every row is right, so that the log loss falls as T goes to 0"
        )
    if known.slope >= 0:
        return TemperatureFit(
            known.largest * FARTHEST,
            "the true class has no larger logit than the others on average,"
            " so that the log loss falls as T goes to infinity",
        )
    exact = logits.dtype == torch.float64 or logits.numel() <= _WIDE64
    beta = 1 / known.largest
    if logits.numel() > 2 * _SAMPLE:
        stride = max(8, logits.numel() // _SAMPLE)
        part = logits[::stride], labels[::stride]
        some = _survey(*part)
        if not some.right and some.slope < 0:
            beta = _newton(_Problem(*part, some, working_dtype(logits.dtype)), beta, 0.03)[0]
    dtype = torch.float64 if exact else torch.float32
    beta, noise = _newton(_Problem(logits, labels, known, dtype), beta)
    if not exact and noise > _NOISE:
        beta, _ = _newton(_Problem(logits, labels, known, torch.float64), beta)
    return TemperatureFit(1 / beta)


def best_temperature_for_ece(
    logits: Tensor, labels: Tensor, grid: Sequence[float] = GRID, bins: int = 15
) -> float:
    """The first temperature of a grid with the smallest ECE over equal-width bins; by default document 002's grid.

    The predicted class is that of the logits at every temperature, and only its probability is computed. Sums are
    integers, so that the order of the rows is no matter.
    """
    check_bins(bins)
    if not len(grid) or not all(0 < t < math.inf for t in grid):
        raise CalibrantError("a grid of temperatures holds positive finite numbers, at least one")
    if not len(labels):
        raise InputError("there are no rows to fit to")
    dtype, device = working_dtype(logits.dtype), logits.device
    betas = [1 / t for t in grid]
    sums = torch.zeros(len(grid) * bins, dtype=torch.int64, device=device)
    for rows in _row_blocks(logits):
        shifted, dim = _shifted(logits[rows], dtype, masked=True)
        hits = (logits[rows].argmax(1) == labels[rows]).long() * ONE
        powers = torch.empty_like(shifted)
        step = max(1, (1 << 20) // len(hits))
        for start in range(0, len(grid), step):
            chunk = betas[start : start + step]
            total = torch.empty(len(chunk), len(hits), dtype=dtype, device=device)
            for row, beta in enumerate(chunk):
                torch.mul(shifted, beta, out=powers)
                torch.sum(powers.exp_(), dim, out=total[row])
            confidence = total.reciprocal_()
            place = width_index(confidence, bins)
            place += torch.arange(start, start + len(chunk), device=device)[:, None] * bins
            residual = (confidence.double() * ONE).round_().long() - hits
            sums.scatter_add_(0, place.flatten(), residual.flatten())
    error = sums.view(len(grid), bins).abs().sum(1)
    return float(grid[int(error.argmin())])


@dataclass(frozen=True)
class _Known:
    """What holds at every temperature: the largest finite |D|, the mean of D_y, the slope at 1/T = 0."""

    largest: float
    at_label: float
    slope: float
    masked: bool

    @property
    def finite(self) -> bool:
        return math.isfinite(self.largest + self.at_label + self.slope)

    @property
    def right(self) -> bool:
        """Whether no class has a larger logit than the true one, in any row."""
        return self.at_label == 0


@dataclass(frozen=True)
class _Problem:
    """The log loss of some rows, to be differentiated in one precision."""

    logits: Tensor
    labels: Tensor
    known: _Known
    dtype: torch.dtype

    def slopes(self, beta: float) -> tuple[float, float, float]:
        """The first and the second derivative in 1/T, and the mean of |E_p[D]|."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.logits.device)
        for rows in _row_blocks(self.logits):
            d, dim = _shifted(self.logits[rows], self.dtype, self.known.masked)
            p = torch.mul(d, beta).exp_()
            total = p.sum(dim)
            mean = p.mul_(d).sum(dim).div_(total).double()
            square = p.mul_(d).sum(dim).div_(total).double()
            sums += torch.stack([mean.sum(), square.addcmul_(mean, mean, value=-1).sum()])
        mean, curvature = (sums / len(self.labels)).tolist()
        return mean - self.known.at_label, max(curvature, 0.0), -mean


def _newton(problem: _Problem, beta: float, small: float = _SMALL_STEP) -> tuple[float, float]:
    """The root of the slope in 1/T, from a guess, and how far off float32 arithmetic may have left its logarithm.

    A step to larger 1/T is taken in 1/T and one to smaller in ln(1/T), so that it stays positive; what leaves the
    bracket of the signs seen so far is replaced by its middle in ln(1/T).
    """
    low, high = 0.0, math.inf
    noise = math.inf
    for _ in range(_ROUNDS):
        slope, curvature, mean = problem.slopes(beta)
        if slope == 0:
            break
        low, high = (beta, high) if slope < 0 else (low, beta)
        if beta * curvature > 0:
            step = -slope / (beta * curvature)
            noise = torch.finfo(torch.float32).eps / 2 * (mean - problem.known.at_label) / (beta * curvature)
        else:
            step = -math.copysign(math.inf, slope)
        change = min(math.log1p(step), _FARTHEST_STEP) if step > 0 else max(step, -_FARTHEST_STEP)
        moved = beta * math.exp(change)
        if not low < moved < high:
            moved = math.sqrt(low * high) if low > 0 and high < math.inf else beta * math.exp(change / 2)
        elif abs(change) < small:
            return moved, noise
        if moved == beta:
            break
        beta = moved
    return beta, noise


def _survey(logits: Tensor, labels: Tensor) -> _Known:
    """One pass that waits for the device once; a second one in float64 where a mask or rounding asks for it."""
    n = len(labels)
    if not n:
        raise InputError("there are no rows to fit to")
    at_label, slope, lowest = _extent(logits, labels, working_dtype(logits.dtype), masked=False)
    masked = lowest == -math.inf
    if masked or abs(slope) < 1e-5 * -lowest * n:
        at_label, slope, lowest = _extent(logits, labels, torch.float64, masked)
    return _Known(-lowest, at_label / n, slope / n, masked)


def _extent(logits: Tensor, labels: Tensor, dtype: torch.dtype, masked: bool) -> tuple[float, float, float]:
    """Over all rows the sums of D_y and of the slopes at 1/T = 0, and the smallest D that is not masked."""
    sums = torch.zeros(2, dtype=torch.float64, device=logits.device)
    lowest = torch.zeros((), dtype=dtype, device=logits.device)
    for rows in _row_blocks(logits):
        d, dim = _shifted(logits[rows], dtype, masked=False)
        at_label = d.gather(dim, labels[rows].long().unsqueeze(dim)).squeeze(dim).double()
        count: Tensor | int = d.shape[dim]
        if masked:
            seen = d > -torch.inf
            d, count = d.where(seen, 0), seen.sum(dim)
        sums += torch.stack([at_label.sum(), (d.sum(dim).double() / count - at_label).sum()])
        lowest = torch.minimum(lowest, d.min())
    first, second, third = torch.cat([sums, lowest.double()[None]]).tolist()
    return first, second, third


def _shifted(logits: Tensor, dtype: torch.dtype, masked: bool) -> tuple[Tensor, int]:
    """Logits less the largest of their row, at most 0, and the dimension of the classes; a mask becomes finite."""
    dim = 0 if logits.shape[1] <= _NARROW else 1
    z = logits.t() if dim == 0 else logits
    d = torch.empty(z.shape, dtype=dtype, device=z.device).copy_(z)
    d.sub_(d.amax(dim, keepdim=True))
    return (d.clamp_min_(-math.sqrt(torch.finfo(dtype).max)) if masked else d), dim


def _scaled(logits: Tensor, power: int) -> Tensor:
    """Logits times a power of two, which may itself be no number of their precision."""
    half = power // 2
    return logits.to(working_dtype(logits.dtype)) * 2.0**half * 2.0 ** (power - half)


def _row_blocks(logits: Tensor) -> Iterator[slice]:
    """Ranges of rows: a block fits the cache of a CPU, or keeps a GPU busy."""
    n, k = logits.shape
    size = 1 << 18 if logits.device.type == "cpu" else 1 << 26
    step = max(1, size // k)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))
