"""The null is what it says: labels redrawn from these predictions, and p-values that mean what p-values mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import calibrant as cal
from calibrant.core.registry import describe
from calibrant.metrics import classwise
from calibrant.metrics.calibration_error import CalibrationError

Array = np.ndarray
SPECS = [entry.canonical for entry in describe("metrics") if issubclass(entry.piece, CalibrationError)]
SETS, REDRAWS = 300, 99


def softmax(logits: Array) -> Array:
    e = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def drawn_labels(probs: Array, rng: np.random.Generator) -> Array:
    return np.asarray((rng.random((len(probs), 1)) > probs.cumsum(1)[:, :-1]).sum(1))


@pytest.fixture(scope="module")
def p_values() -> dict[str, Array]:
    """p of every calibration error on calibrated data; fewer redraws than usual, since p is exact for any number."""
    with pytest.MonkeyPatch.context() as patch:
        for spec in SPECS:
            patch.setattr(type(cal.metric(spec)), "redraws", REDRAWS)
        patch.setattr(classwise, "REDRAWS", REDRAWS)
        patch.setattr(classwise, "_LEAST", REDRAWS)
        found: dict[str, list[float]] = {spec: [] for spec in SPECS}
        for seed in range(SETS):
            rng = np.random.default_rng([50, seed])
            logits = 1.5 * rng.standard_normal((300, 3))
            labels = drawn_labels(softmax(logits), rng)
            evaluation = cal.evaluate(cal.Predictions(logits, labels), SPECS, seed=seed)
            for spec, estimate in evaluation.items():
                assert estimate.null is not None
                assert estimate.null.redraws == REDRAWS
                found[spec].append(estimate.null.p)
    return {spec: np.array(values) for spec, values in found.items()}


@pytest.mark.parametrize("spec", SPECS)
def test_p_of_calibrated_data_is_uniform(spec: str, p_values: dict[str, Array]) -> None:
    p = p_values[spec]
    # p takes the values 1/(1+R) .. 1; half a step down makes them uniform on (0, 1) up to a step of 0.01 that a
    # Kolmogorov-Smirnov test of 300 values does not see (its critical distance at p = 1e-3 is 0.11)
    assert stats.kstest(p - 0.5 / (1 + REDRAWS), "uniform").pvalue > 1e-3


def test_p_of_mce_is_uniform_where_one_row_in_a_bin_sets_it() -> None:
    found = []
    for seed in range(SETS):
        rng = np.random.default_rng([7, seed])
        logits = 2 * rng.standard_normal((600, 5))
        null = cal.metric("mce")(logits, drawn_labels(softmax(logits), rng), seed=seed).null
        assert null is not None
        found.append(null.p)
    # with every redraw of the same widest gap counted as extreme, this was below 1e-4: p too large
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_p_values_of_different_metrics_differ(p_values: dict[str, Array]) -> None:
    assert len({tuple(values) for values in p_values.values()}) == len(SPECS)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_null_is_that_of_labels_drawn_again(spec: str, weighted: bool, draw) -> None:
    logits, labels = draw(300, 3, seed=51, sharpen=1.8)
    weights = np.random.default_rng(52).exponential(size=300) if weighted else None
    metric, probs, rng = cal.metric(spec), softmax(logits), np.random.default_rng(53)
    null = metric(logits, labels, weights=weights).null
    assert null is not None
    again = 200 if not weighted else 100
    values = np.array([metric(logits, drawn_labels(probs, rng), weights=weights).value for _ in range(again)])
    if metric.better == "zero":
        values = np.abs(values)
    # Monte-Carlo error of the two means, four standard errors: one of 30 fails once in 500 if seeds were not fixed.
    # The smooth errors read cells instead of rows, which moves them by less than a tenth of their scatter.
    error = values.std() * (4 * np.sqrt(1 / again + 1 / null.redraws) + 0.1)
    assert null.mean == pytest.approx(values.mean(), rel=0, abs=error)
    # the quantile by what lies beyond it, as the null of mce has gaps: one row in twenty, within four standard errors
    share, close = 4 * np.sqrt(0.05 * 0.95 * (1 / again + 1 / null.redraws)), 0.1 * values.std()
    assert (values > null.q95 + close).mean() <= 0.05 + share
    assert (values >= null.q95 - close).mean() >= 0.05 - share
    assert null.redraws == metric.redraws or spec.startswith("classwise")


@pytest.mark.parametrize("spec", SPECS)
def test_overconfident_data_get_the_smallest_p(spec: str, draw) -> None:
    logits, labels = draw(1500, 3, seed=54, sharpen=4.0)
    null = cal.metric(spec)(logits, labels).null
    assert null is not None
    assert null.p == 1 / (1 + null.redraws)


@pytest.mark.parametrize("spec", SPECS)
def test_the_null_does_not_see_the_labels(spec: str, draw) -> None:
    logits, labels = draw(200, 3, seed=55)
    one, two = (cal.metric(spec)(logits, y).null for y in (labels, (labels + 1) % 3))
    assert one is not None
    assert two is not None
    if spec.startswith("kde_ece"):
        return  # leave-one-out: a right and a wrong row of a cell leave themselves out, and cells carry the labels
    assert (one.mean, one.q95) == (two.mean, two.q95)
    assert one.p != two.p


@pytest.mark.parametrize("spec", SPECS)
def test_the_noise_of_a_calibrated_model_falls_with_rows(spec: str, draw) -> None:
    small, large = (cal.metric(spec)(*draw(n, 3, seed=56, sharpen=1)).null for n in (250, 4000))
    assert small is not None
    assert large is not None
    assert large.mean < 0.7 * small.mean  # sixteen times the rows: a fourth for bins, two fifths for smece


def test_three_names_of_one_number_have_the_same_null(draw) -> None:
    preds = cal.Predictions(*draw(300, 4, seed=57))
    nulls = [e.null for e in cal.evaluate(preds, ["ece(bins=1)", "ace(bins=1)", "overconfidence"]).values()]
    assert nulls[0] is not None
    for null in nulls[1:]:
        assert null is not None
        # draws of their own: |normal| scatters by 0.76 of its mean, so two means of a thousand are 0.034 apart
        assert null.mean == pytest.approx(nulls[0].mean, rel=0.14)
        assert null.q95 == pytest.approx(nulls[0].q95, rel=0.2)


def test_a_null_with_everything_certain_is_zero() -> None:
    found = cal.evaluate(cal.Predictions(1000 * np.eye(3), [0, 1, 2]), ["ece", "overconfidence", "smece"])
    for estimate in found.values():
        assert estimate.null is not None
        assert (estimate.null.mean, estimate.null.q95) == (0, 0)
        assert estimate.null.p == 1  # nothing was seen, and nothing else could have been


def test_a_null_for_one_sure_and_wrong_row_is_impossible() -> None:
    found = cal.metric("ece")(np.array([[1000.0, 0]]), [1])
    assert found.null is not None
    assert replace(found.null, p=0) == replace(found.null, mean=0.0, q95=0.0, p=0)
    assert found.null.p == 1 / (1 + found.null.redraws)
