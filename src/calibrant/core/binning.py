"""The only binning there is.

Equal-width bins are (l, u] with edges j/bins, correctly rounded in the dtype of the confidence; confidence 0 goes
to the first bin. Equal-mass groups are contiguous in the stable order of the confidences, the first N mod bins of
them one row larger. Counts are integers and sums are int64 fixed point with 30 fractional bits, so that any order
of the rows, any sharding and any number of workers give the same bytes; one bin holds 8.6e9 rows. A float32
running sum, which other tools use, is wrong by a quarter at 10 million rows in one bin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError

FRACTION_BITS = 30
ONE = 1 << FRACTION_BITS
MOST_BINS = 1 << 24
_PIECE = (
    1 << 17
)  # rows at a time: the scratch stays in the cache, and float64 sums of their fixed-point values exact

Int64 = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Float64 = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def check_bins(bins: int) -> None:
    """Refuse a number of bins that is none, or that would only fill the memory."""
    if bins != int(bins) or isinstance(bins, bool | float):
        raise CalibrantError(f"bins must be a whole number, not {bins!r}")
    if bins < 1:
        raise CalibrantError(f"bins must be at least 1, not {bins}")
    if bins > MOST_BINS:
        raise CalibrantError(f"bins must be at most {MOST_BINS:,}, not {bins:,}")


def edges(bins: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The bins + 1 edges j/bins: the float64 quotient, then rounded to `dtype`."""
    check_bins(bins)
    return torch.from_numpy(np.arange(bins + 1, dtype=np.float64) / bins).to(dtype)


def width_index(values: Tensor, bins: int) -> Tensor:
    """The equal-width bin, 0 to bins - 1, of each value in [0, 1]."""
    edge = edges(bins, values.dtype).to(values.device)
    index = torch.empty(values.shape, dtype=torch.int64, device=values.device)
    flat, out = values.reshape(-1), index.view(-1)
    for rows in _pieces(len(flat), values.device):
        value, guess = flat[rows], out[rows]
        scaled = value * bins
        guess.copy_(scaled.ceil().sub_(1).clamp_(0, bins - 1))
        # the product may be off by some units in the last place: near an edge, the edge itself decides
        from_middle = scaled.frac_().sub_(0.5).abs_()
        near = torch.nonzero(from_middle >= 0.5 - 4 * bins * torch.finfo(values.dtype).eps)[:, 0]
        if len(near):
            exact, first = value[near], guess[near]
            first = (first - (exact <= edge[first]).long()).clamp_(min=0)
            guess[near] = (first + (exact > edge[first + 1]).long()).clamp_(max=bins - 1)
    return index


def _pieces(rows: int, device: torch.device) -> Iterator[slice]:
    """Ranges of rows whose scratch stays in the cache of a CPU; all of them at once elsewhere."""
    step = _PIECE if device.type == "cpu" else max(rows, 1)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def mass_starts(rows: int, bins: int) -> Int64:
    """Where the equal-mass groups of `rows` sorted rows begin; with fewer rows than bins, one group a row."""
    check_bins(bins)
    bins = min(bins, rows)
    small, larger = divmod(rows, bins)
    group = np.arange(bins, dtype=np.int64)
    return group * small + np.minimum(group, larger)


def weighted_mass_starts(weights: Float64, bins: int) -> Int64:
    """Equal-mass groups of sorted rows by weight: a row belongs to the group that holds its weight's midpoint.

    Equal weights give the groups of `mass_starts`; rows without weight go with their neighbours and move nothing.
    """
    rows = int(np.count_nonzero(weights))
    shares = mass_starts(rows, bins) / rows
    middle = (np.cumsum(weights) - weights / 2) / weights.sum()
    group = np.maximum.accumulate(np.searchsorted(shares, middle + 1e-12, side="right"))
    return np.flatnonzero(np.diff(group, prepend=0)).astype(np.int64)


def fixed_sums(index: Int64, values: Float64, bins: int, *, unit: bool = True) -> Int64:
    """Exact int64 sums by bin of the fixed-point values; `unit` promises values in [0, 1], which is faster.

    Sums must stay below 2**33, which weights of mean 1 do for as many rows.
    """
    total = torch.zeros(bins, dtype=torch.int64)
    where, all_ = torch.from_numpy(index), torch.from_numpy(values)
    for rows in _pieces(len(values), where.device):
        scaled = all_[rows].mul(ONE).round_()
        if unit:
            total += torch.bincount(where[rows], scaled, bins).long()
        else:
            whole = scaled.long()
            for half, shift in ((whole & 0x3FFFFFF, 0), (whole >> 26, 26)):  # whose float64 sums stay exact
                total += torch.bincount(where[rows], half.double(), bins).long() << shift
    return total.numpy()


@dataclass(frozen=True)
class BinSums:
    """What every binned metric needs of its bins: rows, and the fixed-point sums of weight, confidence, correctness.

    Two of them with the same bins merge by `+`, whatever the order.
    """

    count: Int64
    weight: Int64
    confidence: Int64
    correct: Int64

    def __add__(self, other: BinSums) -> BinSums:
        if len(self.count) != len(other.count):
            raise CalibrantError(f"cannot merge {len(self.count)} bins with {len(other.count)}")
        return BinSums(
            self.count + other.count,
            self.weight + other.weight,
            self.confidence + other.confidence,
            self.correct + other.correct,
        )

    @property
    def residual(self) -> Float64:
        """Sum of confidence minus correctness in each bin."""
        return (self.confidence - self.correct) / ONE

    @property
    def mass(self) -> Float64:
        """Total weight of each bin: its number of rows when nothing is weighted."""
        return self.weight / ONE

    @property
    def gap(self) -> Float64:
        """Mean confidence minus accuracy in each bin; 0 where a bin is empty."""
        return np.divide(self.residual, self.mass, out=np.zeros(len(self.count)), where=self.weight > 0)


def bin_sums(
    index: Int64, confidence: Float64, correct: np.ndarray, bins: int, weights: Float64 | None = None
) -> BinSums:
    """Sum rows into bins; `index` says the bin of each row."""
    if weights is None:
        where, right = torch.from_numpy(index), torch.from_numpy(correct)
        split = torch.zeros(2 * bins, dtype=torch.int64)
        for rows in _pieces(len(index), where.device):
            split += torch.bincount(where[rows].mul(2).add_(right[rows]), minlength=2 * bins)
        both = split.numpy().reshape(bins, 2)
        count = both.sum(1)
        return BinSums(count, count * ONE, fixed_sums(index, confidence, bins), both[:, 1] * ONE)
    count = np.bincount(index, minlength=bins)
    return BinSums(
        count,
        fixed_sums(index, weights, bins, unit=False),
        fixed_sums(index, weights * confidence, bins, unit=False),
        fixed_sums(index, weights * correct, bins, unit=False),
    )


def segment_sums(
    starts: Int64, confidence: Float64, correct: np.ndarray, weights: Float64 | None = None
) -> BinSums:
    """Sum sorted rows into contiguous groups that begin at `starts`, with the same fixed-point arithmetic."""
    lengths = np.diff(starts, append=len(confidence))
    index = np.repeat(np.arange(len(starts)), lengths)
    return bin_sums(index, confidence, correct, len(starts), weights)
