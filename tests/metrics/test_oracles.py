"""Each metric against a loop written from its definition, against other people's code, and against itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import fsum, inf, log, sqrt

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import brentq
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

import calibrant as cal
from calibrant.core.kernels import DENSE
from calibrant.core.registry import names

Array = np.ndarray
Row = tuple[float, bool, float]  # confidence, correct, weight

# What float64 answers may differ by: fixed point rounds each confidence to 2**-31, so a mean is off by at most 5e-10.
FIXED = 1e-9


def value(spec: str, logits: Array, labels: Array, weights: Array | None = None) -> float:
    return cal.metric(spec)(logits, labels, weights=weights).value


def of_pairs(spec: str, conf: Array, correct: Array, weights: Array | None = None) -> float:
    return cal.evaluate(cal.TopLabel(conf, correct), [spec], weights=weights)[spec].value


# ---- the definitions, one row at a time -------------------------------------------------------------------------


def probabilities(logits: Array) -> list[list[float]]:
    out = []
    for row in logits.tolist():
        e = [np.exp(z - max(row)) for z in row]
        out.append([float(v / fsum(e)) for v in e])
    return out


def top(logits: Array, labels: Array, weights: Array | None = None) -> list[Row]:
    w = [1.0] * len(labels) if weights is None else weights.tolist()
    return [
        (max(p), p.index(max(p)) == y, v)
        for p, y, v in zip(probabilities(logits), labels.tolist(), w, strict=True)
    ]


def bin_of(c: float, bins: int) -> int:
    return next(b for b in range(bins) if c <= (b + 1) / bins)


def in_bins(rows: list[Row], bins: int) -> list[list[Row]]:
    found: list[list[Row]] = [[] for _ in range(bins)]
    for row in rows:
        found[bin_of(row[0], bins)].append(row)
    return [group for group in found if group]


def weight(rows: list[Row]) -> float:
    return fsum(w for _, _, w in rows)


def residual(rows: list[Row]) -> float:
    return fsum(w * (c - a) for c, a, w in rows)


def equal_mass(rows: list[Row], bins: int) -> list[list[Row]]:
    ordered = sorted(rows, key=lambda row: row[0])  # stable
    parts, start = [], 0
    for b in range(min(bins, len(rows))):
        size = len(rows) // bins + (b < len(rows) % bins) if bins <= len(rows) else 1
        parts.append(ordered[start : start + size])
        start += size
    return parts


def slow_ece(rows: list[Row], bins: int) -> float:
    return fsum(abs(residual(g)) for g in in_bins(rows, bins)) / weight(rows)


def slow_rmsce(rows: list[Row], bins: int) -> float:
    return sqrt(fsum(residual(g) ** 2 / weight(g) for g in in_bins(rows, bins)) / weight(rows))


def slow_mce(rows: list[Row], bins: int, least: int) -> float:
    return max((abs(residual(g)) / weight(g) for g in in_bins(rows, bins) if len(g) >= least), default=0.0)


def slow_ace(rows: list[Row], bins: int) -> float:
    return fsum(abs(residual(g)) for g in equal_mass(rows, bins)) / weight(rows)


def slow_debiased(rows: list[Row], bins: int) -> float:
    parts = equal_mass(rows, bins)
    edges = [(a[-1][0] + b[0][0]) / 2 for a, b in pairwise(parts)]
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(sum(row[0] > e for e in edges), []).append(row)
    terms = []
    for g in groups.values():
        n = weight(g)
        if n > 1:
            accuracy = fsum(w * a for _, a, w in g) / n
            terms.append(n / weight(rows) * ((residual(g) / n) ** 2 - accuracy * (1 - accuracy) / (n - 1)))
    return sqrt(max(0.0, fsum(terms)))


def slow_classwise(logits: Array, labels: Array, bins: int, weights: Array | None = None) -> float:
    p = probabilities(logits)
    k = len(p[0])
    w = [1.0] * len(p) if weights is None else weights.tolist()
    per_class = []
    for j in range(k):
        rows = [(row[j], y == j, v) for row, y, v in zip(p, labels.tolist(), w, strict=True)]
        per_class.append(slow_ece(rows, bins))
    return fsum(per_class) / k


def slow_top_label(logits: Array, labels: Array, bins: int, weights: Array | None = None) -> float:
    rows, predicted = top(logits, labels, weights), logits.argmax(1).tolist()
    terms = []
    for k in set(predicted):
        mine = [row for row, q in zip(rows, predicted, strict=True) if q == k]
        terms.append(weight(mine) * slow_ece(mine, bins))
    return fsum(terms) / weight(rows)


def slow_auroc(rows: list[Row]) -> float:
    pairs = [
        (w * v, 1.0 if c > d else 0.5 if c == d else 0.0)
        for c, a, w in rows
        if a
        for d, b, v in rows
        if not b
    ]
    return fsum(m * s for m, s in pairs) / fsum(m for m, _ in pairs)


def slow_aurc(rows: list[Row]) -> float:
    """Unweighted. A row counts the mean error of the rows that tie with it."""
    risks, wrong = [], []
    for c, _, _ in sorted(rows, key=lambda row: -row[0]):
        ties = [not a for d, a, _ in rows if d == c]
        wrong.append(sum(ties) / len(ties))
        risks.append(fsum(wrong) / len(wrong))
    return fsum(risks) / len(risks)


def slow_sece(rows: list[Row], h: float) -> float:
    terms = []
    for c, _, w in rows:
        kernel = [v * np.exp(-(((c - d) / h) ** 2) / 2) for d, _, v in rows]
        terms.append(
            w * abs(fsum(k * a for k, (_, a, _) in zip(kernel, rows, strict=True)) / fsum(kernel) - c)
        )
    return fsum(terms) / weight(rows)


def slow_kde(rows: list[Row], h: float) -> float:
    conf = np.array([c for c, _, _ in rows])
    terms = []
    for i, (c, _, w) in enumerate(rows):
        kernel = stats.beta.pdf(c, conf / h + 1, (1 - conf) / h + 1) * [v for _, _, v in rows]
        kernel[i] = 0
        total = kernel.sum()
        terms.append(w * abs(kernel @ [a for _, a, _ in rows] / total - c) if total > 0 else 0.0)
    return fsum(terms) / weight(rows)


def slow_smece(rows: list[Row]) -> float:
    """Adaptive quadrature of the images, and a bracketing root finder."""
    conf, mass = np.array([c for c, _, _ in rows]), np.array([w * (c - a) for c, a, w in rows]) / weight(rows)
    images = np.concatenate([conf + 2 * m for m in range(-4, 5)] + [2 * m - conf for m in range(-4, 5)])
    masses = np.tile(mass, 18)

    def smoothed(t: float, s: float) -> float:
        return abs(float(masses @ np.exp(-(((t - images) / s) ** 2) / 2))) / (s * sqrt(2 * np.pi))

    def excess(s: float) -> float:
        cuts = np.linspace(0, 1, 21)
        parts = [quad(smoothed, a, b, (s,), epsabs=1e-9, limit=200)[0] for a, b in pairwise(cuts)]
        return fsum(parts) - s

    return float(brentq(excess, 0.01, 1.0, xtol=1e-8))


def slow(spec: str, logits: Array, labels: Array, weights: Array | None = None) -> float:
    """The definition of a metric, for any weights that its definition knows."""
    rows, p = top(logits, labels, weights), probabilities(logits)
    at_label = [(q[y], w) for q, y, (_, _, w) in zip(p, labels.tolist(), rows, strict=True)]
    table: dict[str, Callable[[], float]] = {
        "error": lambda: fsum(w * (not a) for _, a, w in rows) / weight(rows),
        "nll": lambda: fsum(-w * log(q) if q else inf for q, w in at_label) / weight(rows),
        "brier": lambda: (
            fsum(
                w * fsum((v - (j == y)) ** 2 for j, v in enumerate(q))
                for q, y, (_, _, w) in zip(p, labels.tolist(), rows, strict=True)
            )
            / weight(rows)
        ),
        "overconfidence": lambda: residual(rows) / weight(rows),
        "ece(bins=15)": lambda: slow_ece(rows, 15),
        "ece(bins=7)": lambda: slow_ece(rows, 7),
        "rmsce(bins=15)": lambda: slow_rmsce(rows, 15),
        "mce(bins=15)": lambda: slow_mce(rows, 15, 1),
        "mce(bins=20, min_count=9)": lambda: slow_mce(rows, 20, 9),
        "classwise_ece(bins=15)": lambda: slow_classwise(logits, labels, 15, weights),
        "classwise_ece(bins=4)": lambda: slow_classwise(logits, labels, 4, weights),
        "top_label_ece(bins=15)": lambda: slow_top_label(logits, labels, 15, weights),
        "auroc": lambda: slow_auroc(rows),
        "sece(bandwidth=0.01)": lambda: slow_sece(rows, 0.01),
        "sece(bandwidth=0.2)": lambda: slow_sece(rows, 0.2),
        "kde_ece(bandwidth=0.02)": lambda: slow_kde(rows, 0.02),
        "kde_ece(bandwidth=0.2)": lambda: slow_kde(rows, 0.2),
        # equal-mass groups and coverage are defined here for whole rows only
        "ace(bins=15)": lambda: slow_ace(rows, 15),
        "ace(bins=8)": lambda: slow_ace(rows, 8),
        "debiased_ece(bins=15)": lambda: slow_debiased(rows, 15),
        "debiased_ece(bins=4)": lambda: slow_debiased(rows, 4),
        "aurc": lambda: slow_aurc(rows),
    }
    return table[spec]()


WEIGHTED = [
    "error", "nll", "brier", "overconfidence", "ece(bins=15)", "ece(bins=7)", "rmsce(bins=15)", "mce(bins=15)",
    "mce(bins=20, min_count=9)", "classwise_ece(bins=15)", "classwise_ece(bins=4)", "top_label_ece(bins=15)", "auroc",
    "sece(bandwidth=0.01)", "sece(bandwidth=0.2)", "kde_ece(bandwidth=0.02)", "kde_ece(bandwidth=0.2)",
]  # fmt: skip
ROWS_ONLY = ["ace(bins=15)", "ace(bins=8)", "debiased_ece(bins=15)", "debiased_ece(bins=4)", "aurc"]


def test_every_metric_has_an_oracle() -> None:
    assert {spec.split("(")[0] for spec in [*WEIGHTED, *ROWS_ONLY]} | {"smece"} >= set(names("metrics"))


@pytest.mark.parametrize("shape", [(250, 4), (120, 2), (61, 7), (6, 3)], ids=str)
@pytest.mark.parametrize("spec", [*WEIGHTED, *ROWS_ONLY])
def test_against_the_definition(spec: str, shape: tuple[int, int], draw) -> None:
    logits, labels = draw(*shape, seed=1)
    assert value(spec, logits, labels) == pytest.approx(slow(spec, logits, labels), rel=0, abs=FIXED)


@pytest.mark.parametrize("spec", WEIGHTED)
def test_against_the_weighted_definition(spec: str, draw) -> None:
    logits, labels = draw(150, 3, seed=2)
    weights = np.random.default_rng(3).exponential(size=150)
    weights[::7] = 0
    expected = slow(spec, logits, labels, weights)
    assert value(spec, logits, labels, weights) == pytest.approx(expected, rel=0, abs=FIXED)


# Confidences that tie, in float32 and on bin edges, as (confidence, correct) pairs.
@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("spec", "definition"),
    [
        ("ece(bins=10)", lambda rows: slow_ece(rows, 10)),
        ("ace(bins=7)", lambda rows: slow_ace(rows, 7)),
        ("debiased_ece(bins=7)", lambda rows: slow_debiased(rows, 7)),
        ("auroc", slow_auroc),
        ("aurc", slow_aurc),
        ("sece(bandwidth=0.1)", lambda rows: slow_sece(rows, 0.1)),
        ("kde_ece(bandwidth=0.1)", lambda rows: slow_kde(rows, 0.1)),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_ties(spec: str, definition: Callable[[list[Row]], float], kind: type) -> None:
    rng = np.random.default_rng(4)
    conf = (rng.integers(0, 9, 120) / 8).astype(kind)  # eighths: exact, and 0.5 is an edge of ten bins
    correct = rng.random(120) < conf
    rows = [(float(c), bool(a), 1.0) for c, a in zip(conf, correct, strict=True)]
    assert of_pairs(spec, conf, correct) == pytest.approx(definition(rows), rel=0, abs=FIXED)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sharpen", [2.5, 0.6])
def test_smece_against_quadrature(weighted: bool, sharpen: float, draw) -> None:
    logits, labels = draw(14, 3, seed=6, sharpen=sharpen)
    weights = np.linspace(0.5, 2, 14) if weighted else None
    expected = slow_smece(top(logits, labels, weights))
    # 1e-6 is what the docstring promises of its grid of 4096 cells
    assert value("smece", logits, labels, weights) == pytest.approx(expected, rel=0, abs=1e-6)


def test_smece_of_one_confidence_is_the_gap() -> None:
    # All mass at one point: the smoothed residual has one sign, so its integral is |mean residual| at every width.
    conf, correct = np.full(50, 0.7), np.arange(50) < 20
    assert of_pairs("smece", conf, correct) == pytest.approx(0.3, abs=1e-9)


# ---- other people's code ----------------------------------------------------------------------------------------


def softmax(logits: Array) -> Array:
    return np.array(probabilities(logits))


@pytest.mark.parametrize("weighted", [False, True])
def test_against_scikit_learn(weighted: bool, draw) -> None:
    logits, labels = draw(2000, 5, seed=7)
    weights = np.random.default_rng(8).random(2000) + 0.1 if weighted else None
    p = softmax(logits)
    correct = p.argmax(1) == labels
    auroc = roc_auc_score(correct, p.max(1), sample_weight=weights)
    assert value("auroc", logits, labels, weights) == pytest.approx(auroc, abs=1e-12)
    nll = log_loss(labels, p, labels=range(5), sample_weight=weights)
    assert value("nll", logits, labels, weights) == pytest.approx(nll, abs=FIXED)
    brier = brier_score_loss(labels, p, labels=range(5), sample_weight=weights, scale_by_half=False)
    assert value("brier", logits, labels, weights) == pytest.approx(brier, abs=FIXED)


def test_against_duckdb(draw) -> None:
    logits, labels = draw(200_000, 3, seed=9)
    e = np.exp(logits - logits.max(1, keepdims=True))
    table = pa.table({"c": e.max(1) / e.sum(1), "a": (logits.argmax(1) == labels).astype(np.float64)})
    query = "select greatest(ceil(c * 15), 1) as b, count(*) as n, sum(c) - sum(a) as r from rows group by b"
    with duckdb.connect() as db:
        db.register("rows", table)
        ece, rmsce, mce = db.execute(
            f"select sum(abs(r)) / sum(n), sqrt(sum(r * r / n) / sum(n)), max(abs(r) / n) from ({query})"
        ).fetchone()
    assert value("ece(bins=15)", logits, labels) == pytest.approx(ece, rel=0, abs=FIXED)
    assert value("rmsce(bins=15)", logits, labels) == pytest.approx(rmsce, rel=0, abs=FIXED)
    assert value("mce(bins=15)", logits, labels) == pytest.approx(mce, rel=0, abs=FIXED)


# ---- beyond the dense limit the kernels work on grids -----------------------------------------------------------


def large(seed: int, saturated: bool = False) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    conf = rng.beta(2, 1, DENSE + 200)
    if saturated:
        conf = np.where(rng.random(len(conf)) < 0.5, 1 - 10 ** -rng.uniform(2, 9, len(conf)), conf)
        conf[:100], conf[100:110] = 1.0, 0.0
    return conf, rng.random(len(conf)) < conf**1.5, rng.exponential(size=len(conf))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("saturated", [False, True])
@pytest.mark.parametrize("h", [0.001, 0.01, 0.1, 2.0])
def test_sece_on_a_grid_is_the_double_sum(h: float, saturated: bool, weighted: bool) -> None:
    c, a, w = large(1, saturated)
    w = w if weighted else np.ones(len(c))
    kernel = np.exp(-0.5 * ((c[:, None] - c) / h) ** 2)
    expected = w @ np.abs(kernel @ (w * a) / (kernel @ w) - c) / w.sum()
    found = of_pairs(f"sece(bandwidth={h})", c, a, w if weighted else None)
    assert found == pytest.approx(
        expected, rel=0, abs=1e-7
    )  # cubic reading of 64 cells a bandwidth: about 1e-8


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("saturated", [False, True])
@pytest.mark.parametrize("h", [0.002, 0.02, 0.1, 0.2])
def test_kde_on_a_grid_is_the_double_sum(h: float, saturated: bool, weighted: bool) -> None:
    c, a, w = large(2, saturated)
    w = w if weighted else np.ones(len(c))
    with np.errstate(divide="ignore"):
        kernel = stats.beta.pdf(c[:, None], c / h + 1, (1 - c) / h + 1)
    np.fill_diagonal(kernel, 0)
    total = kernel @ w
    gaps = np.where(total > 0, np.abs(kernel @ (w * a) / np.where(total > 0, total, 1) - c), 0)
    found = of_pairs(f"kde_ece(bandwidth={h})", c, a, w if weighted else None)
    assert found == pytest.approx(w @ gaps / w.sum(), rel=0, abs=1e-4)  # what the docstring promises


@pytest.mark.parametrize("spec", ["sece(bandwidth=0.01)", "kde_ece(bandwidth=0.02)"])
def test_no_step_at_the_dense_limit(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c, a, _ = large(3)
    c, a = c[:DENSE], a[:DENSE]
    dense = of_pairs(spec, c, a)
    module = {"sece": "calibrant.metrics.sece", "kde_ece": "calibrant.metrics.kde"}[spec.split("(")[0]]
    monkeypatch.setattr(f"{module}.DENSE", DENSE - 1)
    gridded = of_pairs(spec, c, a)
    assert gridded != dense  # the other path was taken
    assert gridded == pytest.approx(dense, rel=0, abs=1e-4 if "kde" in spec else 1e-7)


# ---- weights ----------------------------------------------------------------------------------------------------

ALL = ["smece", *WEIGHTED, *ROWS_ONLY]
# Four metrics see rows and not only mass, and integer weights are not repeated rows to them:
#   aurc           the risk of a row is read where the row ends, and a weight is one step, not many small ones
#   kde_ece        each row is judged by the others: with its weight goes all of it, of copies only one
#   ace, debiased  the border of a group cannot pass through a row; it can pass between copies of it
#   debiased_ece   and its correction counts rows: weights of any scale count N rows, copies as many as there are
# and `mce(min_count)` counts rows. Their weighted definitions are tested above or below.
NOT_REPETITION = ("aurc", "kde_ece", "ace", "debiased_ece", "mce(bins=20, min_count=9)")


def repeated(logits: Array, labels: Array, counts: Array) -> tuple[Array, Array]:
    return np.repeat(logits, counts, axis=0), np.repeat(labels, counts)


@pytest.mark.parametrize("spec", [s for s in ALL if not s.startswith(NOT_REPETITION)])
def test_integer_weights_are_repeated_rows(spec: str, draw) -> None:
    logits, labels = draw(180, 4, seed=10)
    counts = np.random.default_rng(11).integers(0, 5, 180)
    expected = value(spec, *repeated(logits, labels, counts))
    assert value(spec, logits, labels, counts.astype(float)) == pytest.approx(expected, rel=0, abs=FIXED)


@pytest.mark.parametrize("spec", ["ace(bins=15)", "ace(bins=8)"])
def test_equal_integer_weights_are_repeated_rows_for_equal_mass_bins(spec: str, draw) -> None:
    logits, labels = draw(15 * 8, 4, seed=12)  # all groups alike, so that copies never straddle a border
    counts = np.full(120, 3)
    expected = value(spec, *repeated(logits, labels, counts))
    assert value(spec, logits, labels, counts.astype(float)) == pytest.approx(expected, rel=0, abs=FIXED)


@pytest.mark.parametrize("spec", ["ace(bins=15)", "ace(bins=8)"])
def test_integer_weights_move_a_border_by_less_than_a_row(spec: str, draw) -> None:
    logits, labels = draw(400, 4, seed=13)
    counts = np.random.default_rng(14).integers(1, 4, 400)
    expected = value(spec, *repeated(logits, labels, counts))
    borders = cal.metric(spec).bins - 1
    # a border may be off by half of the heaviest row and one copy; a residual of at most 1 changes sides, in two sums
    bound = 2 * borders * (counts.max() / 2 + 1) / counts.sum()
    assert value(spec, logits, labels, counts.astype(float)) == pytest.approx(expected, rel=0, abs=bound)


def test_integer_weights_change_aurc_by_less_than_a_step(draw) -> None:
    logits, labels = draw(400, 4, seed=15)
    counts = np.random.default_rng(16).integers(1, 4, 400)
    expected = value("aurc", *repeated(logits, labels, counts))
    # a row's own weight moves the risk that it is read at by w / covered at most: sum_m (w_m / N) (w_m / covered_m)
    bound = counts.max() ** 2 / counts.sum() * (1 + log(counts.sum()))
    assert value("aurc", logits, labels, counts.astype(float)) == pytest.approx(expected, rel=0, abs=bound)


@pytest.mark.parametrize("spec", ALL)
@pytest.mark.parametrize("n", [7, 100, 181])
def test_unit_weights_change_nothing(spec: str, n: int, draw) -> None:
    logits, labels = draw(n, 4, seed=17)
    # 1e-12: the weighted path multiplies by 1 and sums in another order
    assert value(spec, logits, labels, np.ones(n)) == pytest.approx(
        value(spec, logits, labels), rel=0, abs=1e-12
    )


# Weights are relative: normalised to sum to 1 is as usual as to sum to N.
@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e-6, 0.37, 1e6, 1e12, 1e300])
@pytest.mark.parametrize("spec", ALL)
def test_scaled_weights_change_nothing(spec: str, scale: float, draw) -> None:
    logits, labels = draw(180, 4, seed=18)
    weights = np.random.default_rng(19).exponential(size=180) + 0.01
    expected = value(spec, logits, labels, weights)
    assert value(spec, logits, labels, weights * scale) == pytest.approx(expected, rel=0, abs=FIXED)


def test_weights_of_a_million_rows_that_sum_to_one(draw) -> None:
    logits, labels = draw(1_000_000, 2, seed=20)
    weights = np.random.default_rng(21).random(1_000_000)
    conf = 1 / (1 + np.exp(-np.abs(logits[:, 0] - logits[:, 1])))
    expected = weights @ (conf - (logits.argmax(1) == labels)) / weights.sum()
    assert value("overconfidence", logits, labels, weights / weights.sum()) == pytest.approx(
        expected, abs=FIXED
    )


def test_the_debiased_error_counts_weights_of_mean_one(draw) -> None:
    """Its correction needs a number of rows, and a weight has no scale: rows count one each on average."""
    logits, labels = draw(300, 4, seed=22)
    counts = np.random.default_rng(24).integers(1, 4, 300)
    as_rows = value("debiased_ece(bins=1)", *repeated(logits, labels, counts))
    weights = counts / counts.mean()
    rows = top(logits, labels, weights)
    gap, accuracy = residual(rows) / 300, fsum(w * a for _, a, w in rows) / 300
    expected = sqrt(gap**2 - accuracy * (1 - accuracy) / 299)
    found = value("debiased_ece(bins=1)", logits, labels, counts.astype(float))
    assert found == pytest.approx(expected, rel=0, abs=FIXED)
    assert found < as_rows  # six hundred rows would be fewer chance


@pytest.mark.parametrize("spec", ALL)
def test_a_row_without_weight_is_a_row_that_is_not_there(spec: str, draw) -> None:
    if spec.startswith("mce(bins=20"):
        pytest.skip("min_count counts rows, with or without weight")
    logits, labels = draw(150, 3, seed=23)
    weights = np.ones(150)
    weights[100:] = 0
    expected = value(spec, logits[:100], labels[:100])
    assert value(spec, logits, labels, weights) == pytest.approx(expected, rel=0, abs=FIXED)


@pytest.mark.parametrize("spec", ["nll", "brier", "ece", "classwise_ece", "smece", "aurc", "kde_ece"])
def test_an_impossible_row_without_weight_does_no_harm(spec: str) -> None:
    probs = np.array([[1.0, 0.0], [0.5, 0.5], [0.25, 0.75]])
    labels = np.array([1, 0, 1])
    preds = cal.Predictions.from_probs(probs, labels)
    found = cal.evaluate(preds, [spec], weights=np.array([0.0, 1.0, 1.0]))[spec]
    expected = cal.evaluate(cal.Predictions.from_probs(probs[1:], labels[1:]), [spec])[spec]
    assert found.value == pytest.approx(expected.value, rel=0, abs=FIXED)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(4), "weights have shape"),
        (np.ones((5, 1)), "weights have shape"),
        (np.array([1, 1, -1, 1, 1.0]), "weight -1.0 in row 2"),
        (np.array([1, np.nan, 1, 1, 1.0]), "weight nan in row 1"),
        (np.array([np.inf, 1, 1, 1, 1.0]), "weight inf in row 0"),
        (np.zeros(5), "all weights are 0"),
    ],
)
def test_wrong_weights_are_refused(weights: Array, message: str, draw) -> None:
    with pytest.raises(cal.InputError, match=message):
        value("ece", *draw(5, 3), weights)


# ---- identities -------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0, 1, 2], ids="data {}".format)
def data(request: pytest.FixtureRequest, draw) -> tuple[Array, Array]:
    return draw(
        [400, 90, 31][request.param], [4, 2, 10][request.param], seed=30, sharpen=[2, 1, 0.5][request.param]
    )


def test_one_bin_is_the_overall_gap(data) -> None:
    gap = abs(value("overconfidence", *data))
    for spec in ("ece(bins=1)", "ace(bins=1)", "rmsce(bins=1)", "mce(bins=1)"):
        assert value(spec, *data) == pytest.approx(gap, rel=0, abs=FIXED)


@pytest.mark.parametrize("bins", [2, 15, 100])
def test_order_of_the_binned_errors(data, bins: int) -> None:
    gap, ece, rmsce, mce, within = (
        value(s, *data)
        for s in (
            "ece(bins=1)",
            f"ece(bins={bins})",
            f"rmsce(bins={bins})",
            f"mce(bins={bins})",
            f"top_label_ece(bins={bins})",
        )
    )
    assert gap <= ece + FIXED
    assert ece <= rmsce + FIXED
    assert rmsce <= mce + FIXED
    assert ece <= within + FIXED


@pytest.mark.parametrize("factor", [2, 3, 5])
def test_finer_bins_never_show_less(data, factor: int) -> None:
    assert value(f"ece(bins={6 * factor})", *data) >= value("ece(bins=6)", *data) - 1e-12


def test_one_predicted_class_makes_top_label_ece_plain(draw) -> None:
    logits, labels = draw(200, 4, seed=31)
    logits[:, 2] = logits.max(1) + 0.5
    assert value("top_label_ece", logits, labels) == pytest.approx(value("ece", logits, labels), abs=1e-12)


def test_classwise_of_two_classes_is_the_binary_error(draw) -> None:
    logits, labels = draw(300, 2, seed=32)
    one = softmax(logits)[:, 1]
    rows = [(float(p), bool(y), 1.0) for p, y in zip(one, labels, strict=True)]
    assert value("classwise_ece(bins=10)", logits, labels) == pytest.approx(slow_ece(rows, 10), abs=FIXED)


def test_a_bin_for_each_row_is_the_mean_distance(data) -> None:
    rows = top(*data)
    expected = fsum(abs(c - a) for c, a, _ in rows) / len(rows)
    assert value(f"ace(bins={len(rows)})", *data) == pytest.approx(expected, rel=0, abs=FIXED)
    assert value(f"ace(bins={10 * len(rows)})", *data) == pytest.approx(expected, rel=0, abs=FIXED)


def test_limits_of_the_kernel_errors(data) -> None:
    rows = top(*data)
    conf = [c for c, _, _ in rows]
    narrow = fsum(abs(c - a) for c, a, _ in rows) / len(rows)
    assert min(np.diff(sorted(conf))) > 0
    spacing = min(np.diff(sorted(conf)))
    if spacing > 6e-5:  # six bandwidths apart a kernel of 1e-5 sees nothing of its neighbour
        assert value("sece(bandwidth=1e-5)", *data) == pytest.approx(narrow, rel=0, abs=1e-7)
    accuracy = fsum(a for _, a, _ in rows) / len(rows)
    broad = fsum(abs(accuracy - c) for c in conf) / len(conf)
    # at bandwidth 10 the kernel is at least exp(-1/200) over [0, 1], so an average moves by at most 0.005
    assert value("sece(bandwidth=10)", *data) == pytest.approx(broad, rel=0, abs=0.005)


def test_smece_lies_above_the_gap_and_below_the_mean_distance(data) -> None:
    # the integral of |smoothed| is at least |its integral|, and smoothing cannot lengthen; 1e-6 of its grid
    rows = top(*data)
    assert value("smece", *data) >= abs(value("overconfidence", *data)) - 1e-6
    assert value("smece", *data) <= fsum(abs(c - a) for c, a, _ in rows) / len(rows) + 1e-6


def test_ranking_identities() -> None:
    conf, correct = np.array([0.1, 0.2, 0.3, 0.8, 0.9]), np.array([0, 0, 0, 1, 1])
    assert of_pairs("auroc", conf, correct) == 1.0
    assert of_pairs("auroc", conf, 1 - correct) == 0.0
    assert of_pairs("auroc", np.full(5, 0.5), correct) == 0.5
    assert of_pairs("aurc", conf, correct) == pytest.approx((1 / 3 + 2 / 4 + 3 / 5) / 5, abs=1e-15)
    assert of_pairs("aurc", np.full(5, 0.5), correct) == pytest.approx(0.6, abs=1e-15)  # the error rate
    assert of_pairs("aurc", conf, np.ones(5, dtype=int)) == 0.0
    rng = np.random.default_rng(33)
    conf, correct = rng.random(300), rng.random(300) < 0.6
    auroc = of_pairs("auroc", conf, correct)
    assert of_pairs("auroc", conf, ~correct) == pytest.approx(1 - auroc, abs=1e-12)
    assert of_pairs("auroc", conf**3, correct) == pytest.approx(
        auroc, abs=1e-12
    )  # an increasing map of confidence
    assert of_pairs("aurc", conf**3, correct) == pytest.approx(of_pairs("aurc", conf, correct), abs=1e-12)


def test_known_values_of_the_proper_scores() -> None:
    logits, labels = np.zeros((8, 4)), np.arange(8) % 4
    assert value("nll", logits, labels) == pytest.approx(log(4), abs=FIXED)
    assert value("brier", logits, labels) == pytest.approx(0.75, abs=FIXED)
    assert value("error", logits, labels) == 0.75
    assert value("ece", logits, labels) == 0.0  # says 1/4, is right in 1/4


@pytest.mark.parametrize("margin", [12.0, 20.0, 30.0])
def test_a_tiny_log_loss_is_not_nothing(margin: float) -> None:
    # ln(1 + e^-margin) for every row: 6e-6, 2e-9, 9e-14. Rounded to 2**-30 the last two would be off or 0.
    logits, labels = np.tile([margin, 0.0], (10, 1)), np.zeros(10, dtype=int)
    # 1e-3: ln(sum) loses digits where the sum is 1 + 1e-13, whose last place is 2e-16
    assert value("nll", logits, labels) == pytest.approx(np.log1p(np.exp(-margin)), rel=2e-3)


def test_float_input_of_probabilities_is_not_changed_by_measuring_it() -> None:
    probs = np.array([[0.25, 0.5, 0.25], [0.125, 0.75, 0.125], [1.0, 0.0, 0.0]])
    kept = probs.copy()
    found = cal.evaluate(cal.Predictions.from_probs(probs, [1, 0, 2]), ["brier", "classwise_ece", "ece"])
    assert found["brier"].value == pytest.approx((0.375 + 1.34375 + 2) / 3, abs=FIXED)
    assert np.array_equal(probs, kept)
