"""Means, differences and corrections against SciPy and by hand."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibrant.study.statistics import holm, paired, summary, two_sample

A = [3.03, 2.91, 3.20, 2.88, 3.11]
B = [1.84, 1.99, 2.10, 1.75, 1.60]
ROUNDING = 1e-12  # both sides are a handful of float64 operations


def test_a_mean_and_its_deviation_are_numpys() -> None:
    found = summary(A)
    assert found.n == 5
    assert found.mean == pytest.approx(np.mean(A), rel=ROUNDING)
    assert found.sd == pytest.approx(np.std(A, ddof=1), rel=ROUNDING)
    assert summary([2.0]).sd is None
    assert summary([0.1] * 3).sd == 0.0


def test_paired_differences_are_scipys() -> None:
    found, oracle = paired(A, B), stats.ttest_rel(A, B)
    interval = oracle.confidence_interval(0.95)
    assert found.difference == pytest.approx(np.mean(A) - np.mean(B), rel=ROUNDING)
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-9)  # a tail, from two routines of SciPy
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_against_a_number_it_is_the_one_sample_test() -> None:
    assert paired(A, [3.0] * 5).p == pytest.approx(stats.ttest_1samp(A, 3.0).pvalue, rel=1e-9)


def test_the_two_sample_test_is_students() -> None:
    assert two_sample(A, B[:3]) == pytest.approx(stats.ttest_ind(A, B[:3]).pvalue, rel=1e-9)
    assert two_sample(A, [1.0]) is None


def test_pairs_take_out_what_the_seed_does_to_both() -> None:
    seeds = [0.0, 5.0, -3.0, 8.0, 1.0]
    moved = paired(
        [a + s for a, s in zip(A, seeds, strict=True)], [b + s for b, s in zip(B, seeds, strict=True)]
    )
    plain = paired(A, B)
    assert moved.p == pytest.approx(plain.p, rel=1e-9)
    assert two_sample([a + s for a, s in zip(A, seeds, strict=True)], B) != pytest.approx(two_sample(A, B))


def test_what_too_few_or_equal_values_say() -> None:
    one = paired([1.0], [0.5])
    assert (one.n, one.difference, one.interval, one.p) == (1, 0.5, None, None)
    assert paired([], []).difference is None
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1.0
    grid = paired([1.0, 2.0], [0.5, 1.5])
    assert (grid.difference, grid.interval, grid.p) == (0.5, None, None)
    assert two_sample([1.0, 1.0], [2.0, 2.0]) is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # 3 p1; 2 p3; max(p2, 2 p3)
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_between_the_plain_p_and_bonferronis(ps: list[float]) -> None:
    found = holm(ps)
    assert all(p <= q <= min(1.0, len(ps) * p) + 1e-15 for p, q in zip(ps, found, strict=True))
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    assert all(found[i] <= found[j] for i, j in pairwise(order))
    assert all(math.isfinite(q) for q in found)
