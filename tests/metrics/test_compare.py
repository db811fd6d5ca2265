"""A paired comparison: nothing where nothing differs, mirrored when swapped, and refused where rows differ."""

from __future__ import annotations

from html import unescape
from math import isnan

import numpy as np
import pytest

import calibrant as cal
from calibrant.core.registry import describe
from calibrant.metrics.scores import Scores

Array = np.ndarray
SPECS = [entry.canonical for entry in describe("metrics")]


def pair(draw, n: int = 300, seed: int = 60) -> tuple[cal.Predictions, cal.Predictions]:
    """A model and a second one on the same rows: the first, twice as sure, with some noise of its own."""
    logits, labels = draw(n, 3, seed=seed)
    noise = np.random.default_rng(61).standard_normal(logits.shape)
    return cal.Predictions(logits, labels), cal.Predictions(2 * logits + 0.3 * noise, labels)


def test_a_model_is_no_different_from_itself(draw) -> None:
    a, _ = pair(draw)
    found = cal.compare(a, a, SPECS, resamples=100)
    assert list(found) == SPECS
    for spec, difference in found.items():
        assert (difference.value, difference.ci, difference.p) == (0.0, (0.0, 0.0), 1.0), spec


def test_swapping_mirrors(draw) -> None:
    a, b = pair(draw)
    one, two = (
        cal.compare(a, b, SPECS, resamples=100, seed=3),
        cal.compare(b, a, SPECS, resamples=100, seed=3),
    )
    for spec in SPECS:
        x, y = one[spec], two[spec]
        assert (x.a, x.b, x.value) == (y.b, y.a, -y.value)
        assert x.ci is not None
        assert y.ci is not None
        # the quantiles of -x are minus those of x up to the interpolation's rounding
        assert x.ci == pytest.approx((-y.ci[1], -y.ci[0]), rel=0, abs=1e-12)
        assert x.p == y.p


def test_a_seed_repeats_and_another_does_not(draw) -> None:
    a, b = pair(draw)
    one, two, other = (cal.compare(a, b, ["ece", "nll"], resamples=100, seed=s) for s in (1, 1, 2))
    assert one.to_json() == two.to_json()
    assert one["ece"].value == other["ece"].value
    assert one["ece"].ci != other["ece"].ci


def test_what_else_is_compared_does_not_move_a_binned_interval(draw) -> None:
    a, b = pair(draw)
    alone = cal.compare(a, b, ["ece(bins=15)"], resamples=100)["ece(bins=15)"]
    among = cal.compare(a, b, SPECS, resamples=100)["ece(bins=15)"]
    assert among.ci == pytest.approx(alone.ci, rel=0, abs=1e-12)  # finer cells add up to the same bins
    assert among.p == alone.p


# How far a metric that is computed for all resamples at once may be from its value with those weights:
#   1e-9   the same bins, in fixed point there and in float64 here
#   ace, debiased_ece: the sample's own bins are kept, where the weighted value would cut new ones. One resample moves
#          a border by some rows (sqrt(N) at most); all 15 together move the value by less than the borders' rows / N
#   smooth ones: rows are read at the centre of their cell, 1/1024 of the arcsine scale, so at most 0.0008 away; the
#          kernels of sece (0.01) and kde_ece are wider than that by ten
#   kde_ece moreover: a row drawn twice is two rows to the batch, each judged by the other; as one row of weight 2 it is
#          judged by the rest alone. Near 0, where few rows are within reach, that is a hundredth of its size
KEPT_BINS, CELLS = 0.05, 2e-3
TOLERANCE = {"ace": KEPT_BINS, "debiased_ece": KEPT_BINS, "smece": CELLS, "sece": CELLS, "kde_ece": 0.01}


@pytest.mark.parametrize("spec", SPECS)
def test_all_resamples_at_once_are_one_after_the_other(spec: str, draw) -> None:
    logits, labels = draw(300, 3, seed=62, sharpen=3)  # far from 0, where the root of debiased_ece is steep
    preds, metric, rng = cal.Predictions(logits, labels), cal.metric(spec), np.random.default_rng(63)
    counts = rng.multinomial(300, np.full(300, 1 / 300), size=20).astype(np.float64)
    together = metric.resampled(Scores(preds), counts)
    shared = Scores(preds)
    single = [metric.value(shared.reweighted(row)) for row in counts]
    np.testing.assert_allclose(together, single, rtol=0, atol=TOLERANCE.get(spec.split("(")[0], 1e-9))
    if not spec.startswith(
        "debiased_ece"
    ):  # which counts rows: 300 when resampled, those with weight when weighted
        given = [cal.evaluate(preds, [spec], weights=row)[spec].value for row in counts]
        np.testing.assert_allclose(single, given, rtol=0, atol=1e-9)
    assert np.std(together) > 0


@pytest.mark.parametrize("spec", SPECS)
def test_resampling_every_row_once_is_the_value(spec: str, draw) -> None:
    preds, metric = cal.Predictions(*draw(300, 3, seed=64)), cal.metric(spec)
    once = metric.resampled(Scores(preds), np.ones((2, 300)))
    tolerance = CELLS if spec.split("(")[0] in ("smece", "sece", "kde_ece", "debiased_ece") else 1e-9
    np.testing.assert_allclose(once, metric.value(Scores(preds)), rtol=0, atol=tolerance)


def test_resamples_where_nothing_can_be_ranked_are_left_out() -> None:
    logits, labels = np.array([[2.0, 0], [1, 0], [3, 0], [1.5, 0]]), np.array([0, 0, 0, 1])
    counts = np.array([[1.0, 1, 1, 1], [2, 1, 1, 0], [0, 0, 0, 4]])
    found = cal.metric("auroc").resampled(Scores(cal.Predictions(logits, labels)), counts)
    assert [isnan(v) for v in found] == [False, True, True]
    logits, labels = np.tile(logits, (5, 1)), np.tile([0, 0, 0, 0], 5)
    labels[0] = 1  # one wrong answer in twenty: a third of all resamples have none, and no ranking
    one, two = cal.Predictions(logits, labels), cal.Predictions(logits**2, labels)
    difference = cal.compare(one, two, ["auroc"])["auroc"]
    assert difference.p is None
    assert difference.reason is not None
    assert "resamples" in difference.reason
    labels[:8] = 1
    difference = cal.compare(one, two, ["auroc"])["auroc"]
    assert difference.p is not None
    assert 0 < difference.p <= 1


def test_a_handful_of_rows_is_no_bootstrap() -> None:
    few = cal.Predictions(np.eye(4), np.arange(4))
    difference = cal.compare(few, few, ["ece"])["ece"]
    assert difference.reason == "4 rows are too few for a bootstrap; it takes 20"
    assert difference.cells() == ["ece(bins=15)", "n/a", "", "", "", ""]


def test_a_worse_calibrated_model_is_told_from_a_better_one(draw) -> None:
    a, b = pair(draw, n=2000)
    found = cal.compare(a, b, ["ece", "nll", "brier", "smece", "overconfidence"], resamples=200)
    for spec, difference in found.items():
        assert difference.value > 0, spec
        assert difference.ci is not None
        assert difference.ci[0] > 0, spec
        assert difference.p == pytest.approx(1 / 201)


def test_two_equal_models_are_seldom_told_apart() -> None:
    """Exchangeable by construction, each with noise of its own: about one interval in twenty misses 0."""
    misses = dict.fromkeys(("error", "nll", "overconfidence"), 0)
    for seed in range(60):
        rng = np.random.default_rng([65, seed])
        base = rng.standard_normal((200, 3))
        labels = rng.integers(0, 3, 200)
        base[np.arange(200), labels] += 1
        a, b = (cal.Predictions(base + 0.5 * rng.standard_normal((200, 3)), labels) for _ in range(2))
        for spec, difference in cal.compare(a, b, list(misses), resamples=200, seed=seed).items():
            assert difference.ci is not None
            misses[spec] += not difference.ci[0] <= 0 <= difference.ci[1]
    # Binomial(60, 0.05) exceeds 9 once in two thousand
    assert max(misses.values()) <= 9, misses


def test_a_metric_that_does_not_apply_says_so(draw) -> None:
    logits, _ = draw(50, 3, seed=66)
    right = cal.Predictions(logits, logits.argmax(1))
    found = cal.compare(right, right, ["auroc", "error"], resamples=100)
    assert "every answer is right" in (found["auroc"].reason or "")
    assert (found["auroc"].ci, found["auroc"].p) == (None, None)
    document = found.to_json()["metrics"]
    assert document["auroc"]["difference"] is None
    assert "reason" in document["auroc"]
    assert set(document["error"]) == {"canonical", "a", "b", "difference", "ci", "p"}


def test_pairs_of_confidence_and_correctness_are_compared(draw) -> None:
    rng = np.random.default_rng(67)
    a, b = (cal.TopLabel(rng.random(80), rng.random(80) < 0.5) for _ in range(2))
    found = cal.compare(a, b, ["ece", "brier", "auroc"], resamples=100)
    assert found["ece"].p is not None
    assert "full probability vector" in (found["brier"].reason or "")


LOGITS, LABELS = np.arange(12.0).reshape(4, 3) % 5, np.array([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (cal.Predictions(LOGITS[:3], LABELS[:3]), "have 4 and 3 rows"),
        (cal.Predictions(LOGITS, [0, 1, 1, 0]), r"different labels, first in row 2 \(2 and 1\)"),
        (cal.Predictions(np.c_[LOGITS, LOGITS[:, 0]], LABELS), "have 3 and 4 classes"),
        (cal.Predictions(LOGITS, LABELS, ids=["a", "b", "d", "c"]), "differ in their ids from row 2"),
        (cal.Predictions(LOGITS, LABELS, ids=[1, 2, 3, 4]), "differ in their ids from row 0"),
        (cal.TopLabel(np.full(4, 0.5), [0, 1, 1, 0]), "different kinds"),
    ],
)
def test_what_cannot_be_paired_is_refused(b: cal.Predictions | cal.TopLabel, message: str) -> None:
    a = cal.Predictions(LOGITS, LABELS, ids=["a", "b", "c", "d"])
    for one, two in ((a, b), (b, a)):
        with pytest.raises(cal.InputError) as caught:
            cal.compare(one, two, ["ece"], resamples=100)
        assert "\n" not in str(caught.value)
        if one is a:
            assert caught.match(message)


def test_ids_that_only_one_side_has_are_no_obstacle() -> None:
    a, b = cal.Predictions(LOGITS, LABELS, ids=["a", "b", "c", "d"]), cal.Predictions(-LOGITS, LABELS)
    assert cal.compare(a, b, ["nll"], resamples=100)["nll"].value != 0


def test_a_table_for_notebooks(draw) -> None:
    a, b = pair(draw, n=100)
    found = cal.compare(a, b, ["ece", "auroc"], resamples=100)
    page = found._repr_html_()
    assert page.count("<tr>") == 3
    assert f"<td>{100 * found['ece'].value:+.2f}</td>" in page
    assert f"<td>{found['auroc'].value:+.4f}</td>" in page
    assert found.verdict in unescape(page)


def test_progress_reaches_its_end(draw) -> None:
    a, b = pair(draw, n=100)
    seen: list[tuple[int, int]] = []
    cal.compare(a, b, ["ece"], resamples=150, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (150, 150)
    assert seen == sorted(seen)
