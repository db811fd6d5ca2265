"""Bayesian binning into quantiles: golden numbers, a slow loop over models, one model alone, K = 100 with few rows."""

from collections.abc import Callable
from math import lgamma
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.calibrators.bbq import BBQ, bbq_table
from calibrant.calibrators.pairs import Column
from calibrant.core.binning import width_index
from calibrant.core.errors import CalibrantError

Data = tuple[Tensor, Tensor]


def test_golden(golden: Callable[..., Any], stored: Callable[[str], Data]) -> None:
    records = golden("c_bbq")
    assert records
    for record in records:
        logits, labels = stored(record["apply_to"])
        out = BBQ().fit(*stored(record["input"]))(logits.double())
        assert isinstance(out, Tensor)
        q, a, wanted = out.softmax(1)[:, 1], (labels == 1).double(), record["golden"]
        # sums of a thousand log gamma functions are off by 1e-12, and a float32 input moves quantiles by 1e-8
        np.testing.assert_allclose(q[:10], wanted["first10"], atol=1e-6)
        assert float(-torch.where(a == 1, q, 1 - q).log().mean()) == pytest.approx(wanted["nll"], abs=1e-6)
        assert float(((q - a) ** 2).mean()) == pytest.approx(wanted["brier_binary"], abs=1e-6)
        gaps = torch.zeros(15, dtype=torch.float64).index_add_(0, width_index(q, 15), q - a)
        assert float(gaps.abs().sum() / len(q)) == pytest.approx(wanted["ece15_positive"], abs=1e-6)


def by_loop(scores: list[float], hits: list[int], score: float, most: int) -> float:
    """The definition, model by model and bin by bin."""
    found, weights = [], []
    for bins in range(2, most + 1):
        inner = sorted(set(np.quantile(scores, [i / bins for i in range(1, bins)]).tolist()))
        whole = [-1e-5, *inner, 1 + 1e-5]
        evidence, value = 0.0, 0.0
        for low, high in zip(whole[:-1], whole[1:], strict=True):  # noqa: RUF007 (as the definition has it)
            own = [h for s, h in zip(scores, hits, strict=True) if low < s <= high]
            n, ones, m = len(own), sum(own), 2 / bins
            alpha, beta = m * (low + high) / 2, m * (1 - (low + high) / 2)
            evidence += lgamma(m) - lgamma(n + m) + lgamma(ones + alpha) - lgamma(alpha)
            evidence += lgamma(n - ones + beta) - lgamma(beta)
            if low < score <= high:
                value = ones / n
        found.append(value)
        weights.append(evidence)
    weight = np.exp(np.array(weights) - max(weights))
    return float(weight @ found / weight.sum())


def test_it_is_that_of_a_slow_loop() -> None:
    rng = np.random.default_rng(3)
    scores = np.sort(rng.random(80).round(2))  # ties, and with them fewer bins than asked for
    hits = rng.random(80) < scores**2
    edges, levels = bbq_table(Column(scores, scores[hits]), 9)
    for score in [*scores[::7], 0.0, 0.301, 0.999, 1.0]:
        ours = levels[np.searchsorted(edges, score)]
        assert ours == pytest.approx(by_loop(scores.tolist(), hits.astype(int).tolist(), score, 9), abs=1e-12)


def test_two_bins_are_a_histogram(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(401, 2, 3, torch.float64)
    out = BBQ(2).fit(logits, labels)(logits)
    assert isinstance(out, Tensor)
    p = logits.softmax(1)[:, 1]
    upper = p > p.median()
    for half in (upper, ~upper):
        share = (labels[half] == 1).double().mean()
        torch.testing.assert_close(out.softmax(1)[half, 1], share.expand(int(half.sum())))


def test_it_does_not_destroy_a_model(is_harmless: Callable[[str], bool]) -> None:
    assert is_harmless("bbq")


def test_no_such_setting() -> None:
    with pytest.raises(CalibrantError, match="at least 2"):
        BBQ(1)
