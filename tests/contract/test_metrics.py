"""What holds for every metric there is: parametrised over the registry, so that a new one is covered by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from math import inf, isfinite, isnan
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import calibrant as cal
from calibrant.cli import app
from calibrant.core.contracts import Estimate, Null
from calibrant.core.display import number
from calibrant.core.registry import Entry, describe
from calibrant.core.spec import canonical, show_value
from calibrant.metrics.calibration_error import CalibrationError

Array = np.ndarray
ENTRIES = describe("metrics")
FULL = [entry for entry in ENTRIES if entry.piece.scope == "full-vector"]
TOP = [entry for entry in ENTRIES if entry.piece.scope == "top-label"]


def over(entries: list[Entry]) -> Callable[[Any], Any]:
    return pytest.mark.parametrize("entry", entries, ids=[e.name for e in entries])


every = over(ENTRIES)


def measure(entry: Entry, logits: Any, labels: Any, **more: Any) -> Estimate:
    return cal.metric(entry.canonical)(logits, labels, **more)


def tolerance(entry: Entry) -> float:
    """float32 moves a confidence by some 1e-7; a kernel of a narrow bandwidth multiplies that."""
    return 1e-4 if "bandwidth" in {p.name for p in entry.parameters} or entry.name == "smece" else 1e-6


@pytest.fixture(scope="module")
def generic(draw) -> tuple[Array, Array]:
    return draw(300, 5, seed=40)


@every
def test_it_is_described(entry: Entry) -> None:
    assert entry.piece.better in ("lower", "higher", "zero")
    assert entry.piece.range[0] < entry.piece.range[1]
    assert entry.piece.scope in ("top-label", "full-vector")
    assert len(entry.piece.population) > 10


@every
@pytest.mark.parametrize(("n", "k", "sharpen"), [(300, 5, 1.5), (300, 2, 4.0), (40, 10, 0.3), (2100, 3, 1.0)])
def test_the_value_is_in_its_range_and_named(entry: Entry, n: int, k: int, sharpen: float, draw) -> None:
    found = measure(entry, *draw(n, k, seed=41, sharpen=sharpen))
    assert isinstance(found.value, float)
    low, high = entry.piece.range
    assert low <= found.value <= high
    assert found.spec == entry.canonical
    assert found.better == entry.piece.better
    assert found.population == entry.piece.population
    assert float(found) == found.value
    assert found.reason is None
    assert found.rows is None


@every
def test_it_is_a_value_in_all_kinds_of_arrays(entry: Entry, generic) -> None:
    logits, labels = generic
    kept, kept_labels = logits.copy(), labels.copy()
    value = measure(entry, logits, labels).value
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    assert measure(entry, z, y).value == value
    assert measure(entry, z.clone().requires_grad_(), y).value == value
    assert measure(entry, logits.tolist(), labels.tolist()).value == value
    assert measure(entry, z, y.int()).value == value
    assert measure(entry, np.asfortranarray(logits), labels).value == value
    assert measure(entry, z.T.contiguous().T, y).value == value
    strided = torch.stack([z, -z], dim=2)[:, :, 0]
    assert not strided.is_contiguous()
    assert measure(entry, strided, torch.stack([y, y], 1)[:, 0]).value == value
    assert (
        measure(entry, np.flip(np.flip(logits, 0).copy(), 0), np.flip(np.flip(labels).copy())).value == value
    )
    assert np.array_equal(logits, kept)
    assert np.array_equal(labels, kept_labels)


@every
def test_half_precisions_are_what_they_are_in_float32(entry: Entry, generic) -> None:
    z, y = torch.from_numpy(generic[0]), torch.from_numpy(generic[1])
    for dtype in (torch.float16, torch.bfloat16):
        half = z.to(dtype)
        assert measure(entry, half, y).value == measure(entry, half.float(), y).value


@every
def test_float32_and_float64_agree(entry: Entry, generic) -> None:
    short = generic[0].astype(np.float32)
    narrow, wide = measure(entry, short, generic[1]), measure(entry, short.astype(np.float64), generic[1])
    assert narrow.value == pytest.approx(wide.value, rel=0, abs=tolerance(entry))


@every
def test_the_order_of_rows_does_not_matter(entry: Entry, generic) -> None:
    logits, labels = generic
    shuffle = np.random.default_rng(1).permutation(len(labels))
    value = measure(entry, logits, labels).value
    # no ties here; 1e-12 for what is summed in float64: a kernel sum, a row's softmax is the same in any place
    assert measure(entry, logits[shuffle], labels[shuffle]).value == pytest.approx(value, rel=0, abs=1e-12)


@every
def test_the_order_of_rows_does_not_matter_with_ties(entry: Entry) -> None:
    if entry.name == "ace":
        pytest.skip("cuts a run of equal confidences in row order, which its docstring says")
    rng = np.random.default_rng(2)
    logits = rng.integers(0, 3, (200, 3)).astype(np.float64)
    labels = rng.integers(0, 3, 200)
    shuffle = rng.permutation(200)
    value = measure(entry, logits, labels).value
    assert measure(entry, logits[shuffle], labels[shuffle]).value == pytest.approx(value, rel=0, abs=1e-12)


@every
def test_the_names_of_classes_do_not_matter(entry: Entry, generic) -> None:
    logits, labels = generic
    shuffle = np.array([3, 0, 4, 1, 2])
    value = measure(entry, logits, labels).value
    # a softmax sums in another order: 1e-16 a row, and where a fixed-point rounding tips, 2**-30 / N
    found = measure(entry, logits[:, shuffle], np.argsort(shuffle)[labels]).value
    assert found == pytest.approx(value, rel=0, abs=1e-9)


@every
@pytest.mark.parametrize("constant", [-1000.0, 0.125, 50.0])
def test_a_constant_on_all_logits_does_not_matter(entry: Entry, constant: float, generic) -> None:
    logits, labels = generic
    value = measure(entry, logits, labels).value
    # 1000 + z keeps 13 digits of z
    assert measure(entry, logits + constant, labels).value == pytest.approx(value, rel=0, abs=1e-9)


@every
def test_every_numeric_parameter_does_something(entry: Entry, draw) -> None:
    samples, metric = [draw(n, 4, seed=43) for n in (30, 200)], cal.metric(entry.canonical)
    for p in entry.parameters:
        if isinstance(p.default, bool) or not isinstance(p.default, int | float):
            continue
        others = (
            [p.default / 2, p.default / 4]
            if isinstance(p.default, float)
            else [2 * p.default + 1, 4 * p.default + 3]
        )
        before = [metric(*sample).value for sample in samples]
        after = [
            [replace(metric, **{p.name: other})(*sample).value for sample in samples] for other in others
        ]
        assert not np.allclose(after, before, rtol=0, atol=1e-9), f"{p.name} changes nothing"


@every
def test_its_spec_comes_back(entry: Entry) -> None:
    metric = cal.metric(entry.canonical)
    assert canonical(metric) == entry.canonical
    assert cal.metric(canonical(metric)) == metric == cal.metric(entry.name)
    for p in entry.parameters:
        assert f"{p.name}={show_value(getattr(metric, p.name))}" in entry.canonical


# ---- corners ----------------------------------------------------------------------------------------------------

SURE = 1000.0  # a softmax that is exactly 1 and 0 in every float type that computes it


def corner(name: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    z, y = rng.standard_normal((40, 4)), rng.integers(0, 4, 40)
    sure = SURE * np.eye(4)
    return {
        "one row, right": (np.array([[2.0, 0, 1]]), np.array([0])),
        "one row, wrong": (np.array([[2.0, 0, 1]]), np.array([1])),
        "one row, sure and right": (sure[:1], np.array([0])),
        "one row, sure and wrong": (sure[:1], np.array([1])),
        "two rows": (np.array([[2.0, 0, 1], [0, 1, 0]]), np.array([0, 2])),
        "two equal rows": (np.array([[2.0, 0], [2.0, 0]]), np.array([0, 1])),
        "fewer rows than bins": (z[:6], y[:6]),
        "two classes": (z[:, :2], y % 2),
        "a class that never occurs": (z, y % 3),
        "one class only": (z, np.zeros(40, dtype=int)),
        "all right": (z, z.argmax(1)),
        "all wrong": (z, z.argmin(1)),
        "all sure and right": (sure[y], y),
        "all sure and wrong": (sure[y], (y + 1) % 4),
        "all sure, some wrong": (sure[y], np.where(np.arange(40) < 10, (y + 1) % 4, y)),
        "uniform": (np.zeros((40, 4)), y),
        "masked classes": (np.where(np.arange(4) == (y[:, None] + 1) % 4, -inf, z), y),
        "huge logits": (1e4 * z, y),
        "many classes": (rng.standard_normal((20, 500)), rng.integers(0, 500, 20)),
        "large, all sure": (np.tile(sure, (600, 1)), np.arange(2400) % 4),
        "large, all alike": (np.tile([[1.0, 0, 0]], (2400, 1)), np.arange(2400) % 3),
    }[name]


CORNERS = [
    "one row, right", "one row, wrong", "one row, sure and right", "one row, sure and wrong", "two rows",
    "two equal rows", "fewer rows than bins", "two classes", "a class that never occurs", "one class only", "all right",
    "all wrong", "all sure and right", "all sure and wrong", "all sure, some wrong", "uniform", "masked classes",
    "huge logits", "many classes", "large, all sure", "large, all alike",
]  # fmt: skip


def assert_sound(found: Estimate, piece: type) -> None:
    """A number in its range with sound uncertainty, or a NaN or an infinity with its reason; warnings are errors."""
    if not isfinite(found.value):
        assert isnan(found.value) or found.value == piece.range[1] == inf
        assert found.reason
        assert "\n" not in found.reason
        assert found.ci is None
        assert found.null is None
        return
    assert found.reason is None
    low, high = piece.range
    assert low <= found.value <= high
    assert found.null is None or issubclass(piece, CalibrationError) or isinstance(found.null, Null)
    if found.null is not None:
        null = found.null
        assert (
            low <= null.mean <= null.q95 + 1e-9 or null.q95 >= low
        )  # a skewed null may have its mean beyond q95
        assert high >= null.q95 >= 0
        assert 1 / (1 + null.redraws) <= null.p <= 1
    if found.ci is not None:
        assert low <= found.ci[0] <= found.ci[1] <= high
    json.dumps([found.ci, None if found.null is None else vars(found.null)], allow_nan=False)


@every
@pytest.mark.parametrize("name", CORNERS)
def test_corners(entry: Entry, name: str) -> None:
    logits, labels = corner(name)
    for dtype in (np.float64, np.float32):
        assert_sound(measure(entry, logits.astype(dtype), labels), entry.piece)


@every
def test_a_weight_for_each_corner(entry: Entry) -> None:
    for name in ("one row, right", "two rows", "all sure, some wrong", "uniform", "fewer rows than bins"):
        logits, labels = corner(name)
        weights = np.arange(1.0, len(labels) + 1)
        assert_sound(measure(entry, logits, labels, weights=weights), entry.piece)


KNOWN = {
    "one row, sure and right": {"error": 0, "nll": 0, "brier": 0, "ece": 0, "mce": 0, "rmsce": 0, "ace": 0, "smece": 0,
                                "sece": 0, "overconfidence": 0, "classwise_ece": 0, "top_label_ece": 0, "aurc": 0},
    "one row, sure and wrong": {"error": 1, "nll": SURE, "brier": 2, "ece": 1, "mce": 1, "rmsce": 1, "ace": 1,
                                "smece": 1, "sece": 1, "overconfidence": 1, "top_label_ece": 1, "aurc": 1},
    "all sure and right": {"error": 0, "nll": 0, "brier": 0, "ece": 0, "mce": 0, "rmsce": 0, "ace": 0, "smece": 0,
                           "sece": 0, "kde_ece": 0, "overconfidence": 0, "classwise_ece": 0, "top_label_ece": 0,
                           "debiased_ece": 0, "aurc": 0},
    "all sure and wrong": {"error": 1, "nll": SURE, "brier": 2, "ece": 1, "mce": 1, "rmsce": 1, "ace": 1, "smece": 1,
                           "sece": 1, "kde_ece": 1, "overconfidence": 1, "classwise_ece": 0.5, "top_label_ece": 1,
                           "debiased_ece": 1, "aurc": 1},
    # debiased: one bin of 40 with accuracy 3/4: 1/16 - (3/16)/39
    "all sure, some wrong": {"error": 0.25, "nll": SURE / 4, "brier": 0.5, "ece": 0.25, "mce": 0.25, "rmsce": 0.25,
                             "smece": 0.25, "sece": 0.25, "overconfidence": 0.25, "auroc": 0.5, "aurc": 0.25,
                             "debiased_ece": (1 / 16 - 3 / 16 / 39) ** 0.5},
    "large, all sure": {"error": 0, "ece": 0, "smece": 0, "sece": 0, "kde_ece": 0, "aurc": 0},
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_values_that_everyone_knows(name: str) -> None:
    logits, labels = corner(name)
    found = cal.evaluate(cal.Predictions(logits, labels), list(KNOWN[name]))
    assert {spec: e.value for spec, e in found.items()} == pytest.approx(KNOWN[name], rel=0, abs=1e-9)


def test_nothing_to_rank_is_said() -> None:
    for name, word in (("all right", "right"), ("all wrong", "wrong"), ("one row, right", "right")):
        found = cal.metric("auroc")(*corner(name))
        assert isnan(found.value)
        assert word in (found.reason or "")
        assert (found.ci, found.null) == (None, None)
    assert "2 rows" in (cal.metric("kde_ece")(*corner("one row, right")).reason or "")


def test_an_impossible_true_class_is_infinite_and_counted() -> None:
    preds = cal.Predictions.from_probs(np.array([[1, 0.0], [1, 0], [0.5, 0.5]]), [1, 1, 0])
    found = cal.evaluate(preds, ["nll", "brier"])
    assert found["nll"].value == inf
    assert found["nll"].rows == 2
    assert found["nll"].reason == "infinite: the true class has probability 0 in 2 rows"
    assert (found["nll"].ci, found["nll"].null) == (None, None)
    assert isfinite(found["brier"].value)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["metrics"]["nll"]["value"] is None
    assert document["metrics"]["nll"]["rows"] == 2
    one = cal.Predictions.from_probs(np.array([[1, 0.0], [0.5, 0.5]]), [1, 0])
    assert "1 row" in (cal.evaluate(one, ["nll"])["nll"].reason or "")


# ---- scope ------------------------------------------------------------------------------------------------------


@over(TOP)
def test_top_label_metrics_take_pairs(entry: Entry, draw) -> None:
    logits, labels = draw(300, 4, seed=44)
    e = np.exp(logits - logits.max(1, keepdims=True))
    conf, correct = e.max(1) / e.sum(1), logits.argmax(1) == labels
    found = cal.evaluate(cal.TopLabel(conf, correct), [entry.canonical])[entry.canonical]
    if isnan(found.value):
        assert entry.piece.columns, "a metric of confidence and correctness alone needs no more than these"
        assert "pairs" in (found.reason or "")
        return
    # numpy's softmax may differ in the last place from torch's: a fixed-point rounding may tip
    assert found.value == pytest.approx(measure(entry, logits, labels).value, rel=0, abs=1e-9)


@over(FULL)
def test_full_vector_metrics_say_why_they_do_not_apply(entry: Entry, draw) -> None:
    logits, labels = draw(50, 4, seed=45)
    pairs = cal.TopLabel(np.linspace(0.3, 0.9, 50), np.arange(50) % 2)
    beside = cal.Predictions(logits, labels, confidence=np.linspace(0.3, 0.9, 50), predicted=labels)
    for source in (pairs, beside):
        found = cal.evaluate(source, [entry.canonical])[entry.canonical]
        assert isnan(found.value)
        assert "full probability vector" in (found.reason or "")


@over(TOP)
def test_a_calibrated_confidence_beside_logits_is_what_counts(entry: Entry, draw) -> None:
    logits, labels = draw(50, 4, seed=46)
    conf, predicted = np.linspace(0.3, 0.9, 50), logits.argmax(1)
    beside = cal.Predictions(logits, labels, confidence=conf, predicted=predicted)
    found = cal.evaluate(beside, [entry.canonical])[entry.canonical].value
    bare = cal.evaluate(cal.TopLabel(conf, predicted == labels), [entry.canonical])[entry.canonical].value
    assert isfinite(found)
    assert found == bare or isnan(bare)
    if entry.name != "error":
        assert found != measure(entry, logits, labels).value


# ---- uncertainty ------------------------------------------------------------------------------------------------


@every
def test_an_interval_or_the_reason_for_none(entry: Entry, generic) -> None:
    found = measure(entry, *generic)
    if found.ci is None:
        assert found.no_interval, "no interval, and no word about it"
        assert len(found.no_interval) > 20
        return
    assert found.no_interval is None
    low, high = found.ci
    assert low < high
    assert entry.piece.range[0] <= low
    assert high <= entry.piece.range[1]


@every
def test_a_calibration_error_has_a_null_and_others_have_none(entry: Entry, generic) -> None:
    null = measure(entry, *generic).null
    assert (null is not None) == issubclass(entry.piece, CalibrationError)
    if null is not None:
        assert 0 <= null.mean <= entry.piece.range[1]
        assert null.mean < null.q95 <= entry.piece.range[1]
        assert null.redraws >= 100
        assert 1 / (1 + null.redraws) <= null.p <= 1
        hits = null.p * (1 + null.redraws) - 1  # p is a count of redraws
        assert hits == pytest.approx(round(hits), abs=1e-6)


@every
def test_a_seed_repeats_and_another_does_not(entry: Entry, generic) -> None:
    one, two, other = (measure(entry, *generic, seed=s) for s in (7, 7, 8))
    assert one.value == two.value == other.value
    assert one.null == two.null
    assert one.ci == two.ci
    if one.null is not None:
        assert one.null != other.null


@every
def test_what_was_read_before_changes_nothing(entry: Entry, generic) -> None:
    """The verdict and the other metrics share redraws with this one; reading them first must not move its p."""
    preds = cal.Predictions(*generic)
    fresh = cal.evaluate(preds, [entry.canonical])
    before = fresh[entry.canonical].null
    later = cal.evaluate(preds, [entry.canonical])
    assert later.verdict == fresh.verdict
    assert later[entry.canonical].null == before


@every
def test_weights_reach_the_null(entry: Entry, draw) -> None:
    if not issubclass(entry.piece, CalibrationError):
        pytest.skip("no calibration error, so no null")
    logits, labels = draw(400, 3, seed=47)
    weights = np.where(
        np.arange(400) < 20, 100.0, 0.01
    )  # in effect twenty rows: the noise of a calibrated model rises
    plain, weighted = (
        measure(entry, logits, labels).null,
        measure(entry, logits, labels, weights=weights).null,
    )
    assert plain is not None
    assert weighted is not None
    assert weighted.mean > plain.mean


# ---- what people see --------------------------------------------------------------------------------------------


@every
def test_it_shows_itself(entry: Entry, generic) -> None:
    found = measure(entry, *generic)
    assert (
        repr(found) == f"Estimate({entry.canonical} = {found.value:.6g})"
    )  # nothing is drawn to print a value
    page = found._repr_html_()
    assert page.count("<td>") == 5
    assert f"<td>{number(found.value, found.unit)}</td>" in page
    assert entry.name in page
    assert found.no_interval is None or found.no_interval in unescape(page)
    if found.null is not None:
        assert f"null {found.null.mean:.6g}" in repr(found)
        assert number(found.null.mean, found.unit) in page


def test_a_page_escapes_what_it_shows() -> None:
    found = Estimate(0.5, "<b>&'\"", "lower", "nothing")
    assert "<b>" not in found._repr_html_()
    assert "&lt;b&gt;&amp;" in found._repr_html_()
    without = Estimate(float("nan"), "x", "lower", "nothing", reason="<script>")
    assert "<script>" not in without._repr_html_()
    assert "n/a" in without._repr_html_()
    ugly = cal.Predictions(np.eye(3), [0, 1, 2], source="<i>")
    assert "<i>" not in cal.evaluate(ugly, ["ece"])._repr_html_()


def test_an_evaluation_shows_every_metric_and_a_verdict(generic) -> None:
    found = cal.evaluate(cal.Predictions(*generic))
    page = found._repr_html_()
    assert page.count("<tr>") >= 1 + len(found)
    for spec in found:
        assert f"<td>{spec}</td>" in page
    assert found.verdict.split(";")[0][:20] in page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, generic) -> str:
    path = tmp_path_factory.mktemp("contract") / "generic.npz"
    np.savez(path, logits=generic[0], labels=generic[1])
    return str(path)


@every
def test_the_command_line_gives_the_same(entry: Entry, generic, file: str) -> None:
    done = CliRunner().invoke(app, ["evaluate", file, "--json", "--metrics", entry.canonical])
    assert done.exit_code == 0, done.stderr

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    document = json.loads(done.stdout, parse_constant=refuse)
    assert done.stdout.strip() == json.dumps(document, sort_keys=True, indent=2)
    found, told = measure(entry, *generic), document["metrics"][" ".join(entry.canonical.split())]
    assert set(told) == {"canonical", "value", "ci", "null"}
    assert told["canonical"] == entry.canonical
    assert told["value"] == found.value  # full precision
    assert told["ci"] == (None if found.ci is None else list(found.ci))
    if found.null is None:
        assert told["null"] is None
    else:
        assert told["null"] == {"mean": found.null.mean, "q95": found.null.q95, "p": found.null.p}
