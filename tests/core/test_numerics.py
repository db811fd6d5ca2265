"""The one pass over the logits against the textbook, and sums and sorts whose order is settled."""

from __future__ import annotations

from math import fsum, inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core.numerics import (
    BLOCK,
    Rows,
    blocks,
    exact_sum,
    probability_blocks,
    row_pass,
    row_pass_probs,
    stable_order,
)

MODES = [
    {},
    {"predicted": True},
    {"nll": True},
    {"brier": True},
    {"predicted": True, "nll": True, "brier": True},
]
modes = pytest.mark.parametrize("mode", MODES, ids=lambda m: "+".join(m) or "bare")


def naive(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """One row at a time in float64, from the definition; -inf is probability 0."""
    out: dict[str, list[float]] = {"confidence": [], "correct": [], "predicted": [], "nll": [], "brier": []}
    for z, y in zip(logits.astype(np.float64), labels, strict=True):
        peak = max(z)
        e = [float(np.exp(v - peak)) for v in z]
        total = fsum(e)
        p = [v / total for v in e]
        first = next(j for j, v in enumerate(z) if v == peak)
        out["confidence"].append(p[first])
        out["predicted"].append(first)
        out["correct"].append(first == y)
        out["nll"].append(float(peak - z[y] + np.log(total)) if z[y] > -inf else inf)
        out["brier"].append(fsum((v - (j == y)) ** 2 for j, v in enumerate(p)))
    return {name: np.array(values) for name, values in out.items()}


def check(logits: torch.Tensor, labels: torch.Tensor, mode: dict[str, bool], rel: float) -> None:
    before = logits.clone()
    check_rows(row_pass(logits, labels, **mode), logits, labels, before, mode, rel)
    reach = float(logits.abs().max())
    check_rows(row_pass(logits, labels, **mode, reach=reach), logits, labels, before, mode, rel)


def check_rows(
    found: Rows,
    logits: torch.Tensor,
    labels: torch.Tensor,
    before: torch.Tensor,
    mode: dict[str, bool],
    rel: float,
) -> None:
    truth = naive(logits.double().numpy(), labels.numpy())
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())  # nothing is written to what came in
    np.testing.assert_allclose(found.confidence, truth["confidence"], rtol=rel, atol=0)
    assert found.correct.tolist() == truth["correct"].tolist()
    if "predicted" in mode:
        assert found.predicted.tolist() == truth["predicted"].tolist()
    if "nll" in mode:
        np.testing.assert_allclose(found.nll, truth["nll"], rtol=rel, atol=rel)
    if "brier" in mode:
        np.testing.assert_allclose(
            found.brier, truth["brier"], rtol=0, atol=4 * rel
        )  # up to 2, from three terms
    for name in {"predicted", "nll", "brier"} - set(mode):
        assert getattr(found, name) is None


# rtol: a sum of K exponentials in the working type, with a few roundings each.
TYPES = [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.float16, 2e-6), (torch.bfloat16, 2e-6)]
types = pytest.mark.parametrize(("dtype", "rel"), TYPES, ids=[str(t) for t, _ in TYPES])


@modes
@types
def test_generic_rows(dtype: torch.dtype, rel: float, mode: dict[str, bool]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn((200, 7), generator=generator, dtype=torch.float64)).to(dtype)
    labels = torch.randint(0, 7, (200,), generator=generator)
    check(logits, labels, mode, rel)


@modes
@types
def test_ties_go_to_the_first_class(dtype: torch.dtype, rel: float, mode: dict[str, bool]) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(0, 3, (300, 5), generator=generator).to(dtype)  # most rows have a tie at the top
    labels = torch.randint(0, 5, (300,), generator=generator)
    check(logits, labels, mode, rel)


@modes
@types
def test_masks_and_saturated_rows(dtype: torch.dtype, rel: float, mode: dict[str, bool]) -> None:
    big = 1e4
    rows = [
        [big, -big, 0, 0],
        [-big, -big, -big, -big],
        [big, big, -big, 0],
        [-inf, 1, -inf, 2],
        [-inf, 0, 0, -inf],
    ]
    rows += [[80, -80, 0, 0], [0, 0, 0, 0], [-inf, -inf, -inf, 3]]
    logits = torch.tensor([row for row in rows for _ in range(4)], dtype=dtype)
    labels = torch.arange(4).repeat(len(rows))
    # a bfloat16 1e4 is 9984: `naive` sees what was stored
    check(logits, labels, mode, rel)


@modes
def test_rows_across_blocks_and_rows_wider_than_a_block(mode: dict[str, bool]) -> None:
    generator = torch.Generator().manual_seed(2)
    for n, k in ((2100, 600), (3, BLOCK + 5)):
        logits = torch.randn((n, k), generator=generator, dtype=torch.float64)
        labels = torch.randint(0, k, (n,), generator=generator)
        found = row_pass(logits, labels, **mode)
        p = logits.softmax(1)
        # pairwise sums of up to half a million terms in another order
        np.testing.assert_allclose(found.confidence, p.amax(1), rtol=1e-11)
        assert torch.equal(found.correct, p.argmax(1) == labels)
        if "nll" in mode:
            np.testing.assert_allclose(found.nll, -logits.log_softmax(1)[torch.arange(n), labels], rtol=1e-11)
        if "brier" in mode:
            hot = torch.zeros_like(p).scatter(1, labels[:, None], 1.0)
            np.testing.assert_allclose(found.brier, ((p - hot) ** 2).sum(1), rtol=1e-11, atol=1e-11)


def test_half_precisions_are_widened_exactly() -> None:
    logits = torch.randn((500, 9), generator=torch.Generator().manual_seed(3))
    labels = torch.zeros(500, dtype=torch.int64)
    for dtype in (torch.float16, torch.bfloat16):
        half = logits.to(dtype)
        one, two = row_pass(half, labels, nll=True), row_pass(half.float(), labels, nll=True)
        assert one.confidence.dtype == torch.float32
        assert torch.equal(one.confidence, two.confidence)
        assert torch.equal(one.nll, two.nll)


def test_logits_that_are_not_contiguous() -> None:
    wide = torch.randn((6, 300), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    labels = torch.randint(0, 6, (300,), generator=torch.Generator().manual_seed(5))
    for view in (wide.T, torch.cat([wide, wide]).T[:, ::2]):
        one = row_pass(view, labels % view.shape[1], nll=True, brier=True, predicted=True)
        two = row_pass(view.contiguous(), labels % view.shape[1], nll=True, brier=True, predicted=True)
        for name in ("confidence", "correct", "predicted", "nll", "brier"):
            assert torch.equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_probabilities_are_taken_as_they_are(dtype: torch.dtype) -> None:
    probs = torch.tensor([[0.25, 0.5, 0.25], [1, 0, 0], [0.5, 0.5, 0], [0.125, 0.125, 0.75]], dtype=dtype)
    labels = torch.tensor([1, 2, 1, 2])
    found = row_pass_probs(probs, labels, brier=True)
    assert found.confidence.tolist() == [0.5, 1, 0.5, 0.75]  # exact: a bin edge stays a bin edge
    assert found.predicted.tolist() == [1, 0, 0, 2]
    assert found.correct.tolist() == [True, False, False, True]
    assert found.brier.tolist() == [0.375, 2, 0.5, 0.09375]


def test_probability_blocks_are_the_softmax() -> None:
    logits = torch.randn((1500, 700), generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    logits[0, :650] = -inf
    whole = torch.cat([p.clone() for _, p in probability_blocks(logits)])
    torch.testing.assert_close(whole, logits.softmax(1), rtol=1e-12, atol=0)  # sums in another order
    assert [r.start for r in blocks(1500, 700)] == [r.start for r, _ in probability_blocks(logits)]
    exact = logits.softmax(1)
    assert torch.equal(torch.cat([p for _, p in probability_blocks(logits, exact)]), exact)


@given(st.integers(0, 3000), st.integers(1, 2_000_000))
def test_blocks_cover_every_row_once(n: int, k: int) -> None:
    covered = [i for rows in blocks(n, k) for i in range(rows.start, rows.stop)]
    assert covered == list(range(n))
    assert all((rows.stop - rows.start) * k <= max(BLOCK, k) for rows in blocks(n, k))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_order_is_that_of_a_stable_sort(kind: type) -> None:
    rng = np.random.default_rng(7)
    ties = rng.integers(0, 40, 5000).astype(kind) / kind(39)
    for values in (
        ties,
        rng.random(5000).astype(kind),
        np.zeros(10, kind),
        np.array([1, -0.0, 0, 1e-45, 0.5], kind),
    ):
        assert stable_order(values).tolist() == np.argsort(np.abs(values), kind="stable").tolist()


@given(st.lists(st.floats(-1e300, 1e300), max_size=40), st.randoms(use_true_random=False))
def test_a_sum_does_not_depend_on_the_order(values: list[float], random) -> None:
    first = exact_sum(np.array(values))
    random.shuffle(values)
    assert exact_sum(np.array(values)) == first


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.sampled_from([1.0, 1e-5, 1e-12, 1e-100]))
def test_a_sum_of_any_scale_is_right(values: list[float], scale: float) -> None:
    scaled = np.array(values) * scale
    # relative: a mean log loss of 1e-11 (a model that is nearly always sure and right) is not 0
    assert exact_sum(scaled) == pytest.approx(fsum(scaled), rel=1e-9, abs=scaled.max() * 1e-12)


def test_an_infinite_sum_is_infinite() -> None:
    assert exact_sum(np.array([1.0, inf])) == inf
    assert exact_sum(np.array([])) == 0.0
