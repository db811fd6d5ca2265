"""Binning against exact arithmetic: edges, every edge case of a confidence, and sums that no order can change."""

from __future__ import annotations

import tracemalloc
from bisect import bisect_left
from fractions import Fraction
from math import fsum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import calibrant as cal
from calibrant.core.binning import (
    MOST_BINS,
    ONE,
    BinSums,
    bin_sums,
    edges,
    fixed_sums,
    mass_starts,
    segment_sums,
    weighted_mass_starts,
    width_index,
)

DTYPES = {torch.float64: np.float64, torch.float32: np.float32}
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def exact_edges(bins: int, kind: type) -> list[Fraction]:
    """j/bins rounded once to the nearest number of that type, by comparing fractions."""
    out = []
    for j in range(bins + 1):
        near = kind(j / bins)
        around = [near, np.nextafter(near, kind(-1)), np.nextafter(near, kind(2))]
        out.append(min((Fraction(float(x)) for x in around), key=lambda x: abs(x - Fraction(j, bins))))
    return out


def slow_bin(value: float, upper: list[Fraction]) -> int:
    """The first bin whose upper edge the value does not exceed: (l, u], and 0 in the first."""
    return bisect_left(upper, Fraction(value))


@dtypes
@pytest.mark.parametrize("bins", [1, 2, 3, 7, 10, 15, 20, 49, 50, 99, 100])
def test_edges_are_the_correctly_rounded_quotients(bins: int, dtype: torch.dtype) -> None:
    assert [Fraction(e) for e in edges(bins, dtype).double().tolist()] == exact_edges(bins, DTYPES[dtype])


@dtypes
def test_every_edge_and_its_neighbours_fall_where_fractions_say(dtype: torch.dtype) -> None:
    kind = DTYPES[dtype]
    for bins in range(1, 101):
        cut = edges(bins, dtype).numpy()
        values = np.concatenate(
            [
                cut,
                np.nextafter(cut, kind(0)),
                np.nextafter(cut, kind(1)),
                [kind(0), kind(1), np.finfo(kind).smallest_subnormal, np.nextafter(kind(1), kind(0))],
            ]
        ).astype(kind)
        upper = exact_edges(bins, kind)[1:]
        expected = [slow_bin(float(v), upper) for v in values]
        assert width_index(torch.from_numpy(values), bins).tolist() == expected, f"{bins} bins"


@dtypes
def test_random_confidences_fall_where_fractions_say(dtype: torch.dtype) -> None:
    values = np.random.default_rng(0).random(300).astype(DTYPES[dtype])
    for bins in (1, 2, 3, 10, 15, 64, 97, 100, 1000):
        upper = exact_edges(bins, DTYPES[dtype])[1:]
        expected = [slow_bin(float(v), upper) for v in values]
        assert width_index(torch.from_numpy(values), bins).tolist() == expected


def test_an_index_never_leaves_its_bins_even_with_more_bins_than_numbers() -> None:
    values = torch.tensor([0.0, 1e-45, 0.5, 1 - 2**-24, 1.0])
    for bins in (1000, MOST_BINS):
        index = width_index(values, bins)
        assert index[0] == 0
        assert index[-1] == bins - 1
        assert int(index.min()) >= 0
        assert bool((index.diff() >= 0).all())


@pytest.mark.parametrize("bins", [0, -1])
def test_no_bins_are_refused(bins: int) -> None:
    with pytest.raises(cal.CalibrantError, match=f"bins must be at least 1, not {bins}"):
        edges(bins)


@pytest.mark.parametrize("bins", [10**9, 10**30])
def test_more_bins_than_memory_are_refused_before_they_are_made(bins: int) -> None:
    # Eight bytes an edge: 10**9 of them would take the machine down, and 10**30 is a ValueError of numpy's.
    with pytest.raises(cal.CalibrantError, match="bins"):
        cal.metric(f"ece(bins={bins})")


rows = st.lists(
    st.tuples(st.floats(0, 1), st.booleans(), st.floats(0, 1000), st.integers(0, 4)), min_size=1, max_size=40
)


def sums_of(some: list[tuple[float, bool, float, int]], weighted: bool) -> BinSums:
    conf = np.array([r[0] for r in some], dtype=np.float64)
    correct = np.array([r[1] for r in some], dtype=bool)
    weights = np.array([r[2] for r in some], dtype=np.float64) if weighted else None
    index = np.array([r[3] for r in some], dtype=np.int64)
    return bin_sums(index, conf, correct, 5, weights)


def integers(sums: BinSums) -> list[list[int]]:
    return [sums.count.tolist(), sums.weight.tolist(), sums.confidence.tolist(), sums.correct.tolist()]


@given(rows, st.booleans(), st.randoms(use_true_random=False))
def test_any_order_and_any_sharding_give_the_same_integers(some, weighted, random) -> None:
    whole = integers(sums_of(some, weighted))
    shuffled = list(some)
    random.shuffle(shuffled)
    assert integers(sums_of(shuffled, weighted)) == whole
    cuts = sorted(random.choices(range(len(some) + 1), k=3))
    parts = [
        sums_of(shuffled[a:b], weighted) for a, b in zip([0, *cuts], [*cuts, len(some)], strict=True) if b > a
    ]
    left = parts[0]
    for part in parts[1:]:
        left = left + part
    right = parts[-1]
    for part in reversed(parts[:-1]):
        right = part + right
    assert integers(left) == integers(right) == whole


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2)), min_size=1, max_size=50))
def test_sums_are_those_of_unbounded_integers(some) -> None:
    values, index = np.array([v for v, _ in some]), np.array([i for _, i in some])
    for unit in (True, False):
        found = fixed_sums(index, values, 3, unit=unit).tolist()
        assert found == [sum(round(Fraction(v) * ONE) for v, i in some if i == b) for b in range(3)]


@given(st.lists(st.floats(0, 2.0**28), min_size=1, max_size=30))
def test_large_weights_are_summed_without_a_rounding(values) -> None:
    found = fixed_sums(np.zeros(len(values), dtype=np.int64), np.array(values), 1, unit=False)
    assert found.tolist() == [sum(round(Fraction(v) * ONE) for v in values)]


def test_bins_that_differ_do_not_merge() -> None:
    zero = np.zeros(1, dtype=np.int64)
    two, three = (
        bin_sums(zero, np.full(1, 0.5), np.ones(1, dtype=bool), 2),
        bin_sums(zero, np.full(1, 0.5), np.ones(1, dtype=bool), 3),
    )
    with pytest.raises(cal.CalibrantError, match="cannot merge 2 bins with 3"):
        two + three


def overconfident_block(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences in one bin of 15, the last, and an accuracy that is 0.1 below: what peers get wrong."""
    rng = np.random.default_rng(5)
    conf = (0.94 + 0.06 * rng.random(n)).astype(np.float32)
    return conf, rng.random(n) < conf.astype(np.float64) - 0.1


def test_forty_million_rows_in_one_bin() -> None:
    """torchmetrics gives 0.0 here for a true 0.100, and 0.127 at 10 million rows (peer-benchmarks, section 3)."""
    conf, correct = overconfident_block(1_000_000)
    truth = (fsum(conf.astype(np.float64)) - int(correct.sum())) / len(conf)
    assert truth == pytest.approx(0.1, abs=1e-3)  # accuracy of a million coins: 4e-4
    index = width_index(torch.from_numpy(conf), 15).numpy()
    assert set(index.tolist()) == {14}
    wide = conf.astype(np.float64)
    total = block = bin_sums(index, wide, correct, 15)
    tracemalloc.start()
    for _ in range(38):
        total = total + block
    total = total + bin_sums(index, wide, correct, 15)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total.count.sum() == 40_000_000
    # Fixed point rounds each confidence by 2**-31 at most, either way: 5e-10 if all went the same way.
    assert abs(total.residual).sum() / total.mass.sum() == pytest.approx(truth, rel=0, abs=1e-9)
    assert peak < 100 * len(conf)  # a few columns of one block, however many blocks there are


def test_a_float32_running_sum_is_lost_at_forty_million_rows() -> None:
    """Why sums are integers: the sums of both confidence and correctness stop at 2**24, and the error looks like 0."""
    conf, correct = overconfident_block(1_000_000)
    sums = np.zeros(2, dtype=np.float32)
    for _ in range(40):
        for column, values in enumerate((conf, correct.astype(np.float32))):
            sums[column] = np.cumsum(np.concatenate([sums[column : column + 1], values]), dtype=np.float32)[
                -1
            ]
    assert sums.tolist() == [2**24, 2**24]


def test_five_million_pairs_in_one_bin_by_the_front_door() -> None:
    conf, correct = overconfident_block(5_000_000)
    truth = (conf.astype(np.float64).sum() - correct.sum()) / len(conf)
    found = cal.evaluate(cal.TopLabel(conf, correct), ["ece(bins=15)"])["ece(bins=15)"].value
    assert found == pytest.approx(truth, rel=0, abs=1e-9)


@given(st.integers(1, 500), st.integers(1, 60))
def test_equal_mass_groups_have_the_sizes_of_array_split(n: int, bins: int) -> None:
    starts = mass_starts(n, bins)
    sizes = np.diff(starts, append=n)
    assert sizes.tolist() == [len(part) for part in np.array_split(np.arange(n), bins) if len(part)]


@given(st.integers(1, 300), st.integers(1, 40), st.sampled_from([1.0, 0.25, 3.0, 1e-6]))
def test_equal_weights_give_the_groups_of_no_weights(n: int, bins: int, weight: float) -> None:
    assert weighted_mass_starts(np.full(n, weight), bins).tolist() == mass_starts(n, bins).tolist()


@given(
    st.lists(st.floats(0, 50), min_size=1, max_size=60).filter(lambda w: sum(w) > 1e-3), st.integers(1, 12)
)
def test_weighted_groups_hold_about_equal_weight(weights: list[float], bins: int) -> None:
    w = np.array(weights)
    starts = weighted_mass_starts(w, bins)
    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert len(starts) <= bins
    mass = np.add.reduceat(w, starts)
    # a group begins and ends within half of a row of its place; 1e-9: the weights are summed in float64
    assert (mass <= w.sum() / bins + w.max() + 1e-9 * w.sum()).all()


def test_sums_of_groups_are_the_sums_of_their_rows() -> None:
    rng = np.random.default_rng(1)
    conf, correct, weights = rng.random(100), rng.random(100) < 0.5, rng.random(100)
    starts = np.array([0, 10, 11, 60])
    for w in (None, weights):
        found = segment_sums(starts, conf, correct, w)
        unit = np.ones(100) if w is None else w
        for b, part in enumerate(np.split(np.arange(100), starts[1:])):
            assert found.count[b] == len(part)
            # each of at most 49 rows is rounded by 2**-31, three times
            assert found.mass[b] == pytest.approx(fsum(unit[part]), abs=1e-7)
            assert found.residual[b] == pytest.approx(
                fsum(unit[part] * (conf[part] - correct[part])), abs=1e-7
            )
            assert found.gap[b] == pytest.approx(
                fsum(unit[part] * (conf[part] - correct[part])) / fsum(unit[part]), abs=1e-7
            )


def test_an_empty_bin_has_no_gap() -> None:
    sums = bin_sums(np.array([2, 2]), np.array([0.5, 0.7]), np.array([True, False]), 4)
    assert sums.gap.tolist() == pytest.approx([0, 0, 0.1, 0])  # (0.5 + 0.7 - 1) / 2, in fixed point
    assert sums.count.tolist() == [0, 0, 2, 0]
