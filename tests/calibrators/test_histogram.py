"""Histogram binning: golden numbers, a slow loop, one bin, empty bins, and K = 100 with few rows."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.calibrators.histogram import Histogram
from calibrant.core.binning import width_index
from calibrant.core.calibration import CalibrationWarning, Top
from calibrant.core.errors import CalibrantError

Data = tuple[Tensor, Tensor]


def on_pairs(top: Top, labels: Tensor) -> dict[str, float]:
    """The scores of the golden records, from (confidence, correct)."""
    q, a = top.confidence.double(), (top.predicted == labels).double()
    gaps = torch.zeros(15, dtype=torch.float64).index_add_(0, width_index(q, 15), q - a)
    return {
        "ece15": float(gaps.abs().sum() / len(q)),
        "brier_pair": float(((q - a) ** 2).mean()),
        "mean_conf": float(q.mean()),
    }


@pytest.mark.parametrize(("scheme", "definition"), [("width", "c_hb_width"), ("mass", "c_hb_mass")])
def test_golden(
    scheme: Any, definition: str, golden: Callable[..., Any], stored: Callable[[str], Data]
) -> None:
    records = golden(definition)
    assert records
    for record in records:
        fitted = Histogram(scheme=scheme).fit(*stored(record["input"]))
        logits, labels = stored(record["apply_to"])
        top, wanted = (
            fitted(logits.double()),
            record["golden"],
        )  # in float32 a level of 3/15 is no edge any more
        assert isinstance(top, Top)
        # 1e-7 is the floor, which keeps frequencies off 0 and 1; the rest is exact in either precision
        np.testing.assert_allclose(fitted.state["levels"][0], wanted["bin_values"], atol=1e-7)
        if "inner_edges" in wanted:
            np.testing.assert_allclose(fitted.state["edges"][0], wanted["inner_edges"], atol=1e-7)
        assert on_pairs(top, labels) == pytest.approx(
            {k: wanted[k] for k in ("ece15", "brier_pair", "mean_conf")}, abs=1e-6
        )


def by_loop(scores: list[float], hits: list[bool], cuts: list[float], score: float) -> float:
    """The definition, bin by bin."""
    whole = [0.0, *cuts, 1.0]
    for low, high in pairwise(whole):
        if (low < score or low == 0) and score <= high:
            own = [h for s, h in zip(scores, hits, strict=True) if (low < s or low == 0) and s <= high]
            return min(max(sum(own) / len(own) if own else (low + high) / 2, 1e-7), 1 - 1e-7)
    raise AssertionError(f"{score} is in no bin")


@pytest.mark.parametrize("scheme", ["width", "mass"])
def test_each_class_is_that_of_a_slow_loop(scheme: Any, draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(60, 3, 5, torch.float64)
    logits[10:20] = logits[:10]  # ties
    out = Histogram(4, scheme, "classwise", share=1).fit(logits, labels)(logits)
    assert isinstance(out, Tensor)
    probs, wanted = logits.softmax(1), torch.zeros_like(logits)
    for k in range(3):
        scores = sorted(probs[:, k].tolist())
        middle = [(scores[i - 1] + scores[i]) / 2 for i in (15, 30, 45)]
        cuts = [0.25, 0.5, 0.75] if scheme == "width" else middle
        hits = (labels == k).tolist()
        for i, score in enumerate(probs[:, k].tolist()):
            wanted[i, k] = by_loop(probs[:, k].tolist(), hits, cuts, score)
    torch.testing.assert_close(out.softmax(1), wanted / wanted.sum(1, keepdim=True))


def test_one_bin_is_the_accuracy(stored: Callable[[str], Data]) -> None:
    logits, labels = stored("over_f32")
    top = Histogram(1).fit(logits, labels)(logits)
    assert isinstance(top, Top)
    assert torch.equal(top.predicted, logits.argmax(1))
    accuracy = (logits.argmax(1) == labels).float().mean()
    torch.testing.assert_close(top.confidence, accuracy.expand(len(logits)))


def test_an_empty_bin_has_its_centre_and_no_confidence_is_0_or_1() -> None:
    logits = torch.tensor([[4.0, 0, 0]]).repeat(6, 1)  # confidence 0.965, in the last of 15 bins
    for label, level in ((0, 1 - 1e-7), (1, 1e-7)):
        with pytest.warns(CalibrationWarning, match="every row is"):
            fitted = Histogram().fit(logits, torch.full((6,), label))
        top = fitted(torch.tensor([[4.0, 0, 0], [0.2, 0, 0]]))
        assert isinstance(top, Top)
        # 0.379 is in the bin (5/15, 6/15]; 1 - 1e-7 is 1 - 1.2e-7 in float32
        np.testing.assert_allclose(top.confidence, [level, 5.5 / 15], rtol=1e-6, atol=1e-8)
        assert 0 < float(top.confidence[0]) < 1


@pytest.mark.parametrize(
    "spec", ['histogram(target="classwise")', 'histogram(target="classwise", scheme="mass")']
)
def test_it_does_not_destroy_a_model(spec: str, is_harmless: Callable[[str], bool]) -> None:
    assert is_harmless(spec)


def test_the_plain_method_does(is_harmless: Callable[[str], bool]) -> None:
    assert not is_harmless('histogram(target="classwise", scheme="mass", share=1)')


def test_masked_classes_and_classes_without_rows(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(500, 4, 3)
    labels[labels == 3] = 0
    logits[0, 1], labels[0] = -torch.inf, 0
    out = Histogram(target="classwise", share=1).fit(logits, labels)(logits)
    assert isinstance(out, Tensor)
    assert out[0, 1] == -torch.inf
    assert int(out.isinf().sum()) == 1
    low = logits.softmax(1)[:, 3].median()
    assert (
        float(out.softmax(1)[:, 3].median()) > float(low) / 3
    )  # the column is what it was, but for the total


@pytest.mark.parametrize(("bad", "says"), [({"bins": 0}, "bins"), ({"share": 1.5}, "share of histogram")])
def test_no_such_setting(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(CalibrantError, match=says):
        Histogram(**bad)
