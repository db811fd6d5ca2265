"""Binning for mutual information: a slow loop, what it maximises, and K = 100 with few rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.calibrators.imax import IMax, imax_cuts
from calibrant.core.calibration import Top

Data = tuple[Tensor, Tensor]


def information(scores: np.ndarray, cuts: np.ndarray) -> float:
    """The mutual information of bin and label in nats, if the scores are the probabilities."""
    place = np.searchsorted(cuts, scores)
    prior = scores.mean()
    found = 0.0
    for b in np.unique(place):
        q, share = scores[place == b].mean(), (place == b).mean()
        found += share * (q * np.log(q / prior) + (1 - q) * np.log((1 - q) / (1 - prior)))
    return float(found)


def test_nothing_moves_at_the_edges_that_are_found() -> None:
    scores = np.sort(np.random.default_rng(0).beta(0.3, 2.0, 500)).clip(1e-6, 1 - 1e-6)
    cuts = imax_cuts(scores, 6)
    assert len(cuts) == 5
    place = np.searchsorted(cuts, scores)
    phi = [np.log(m / (1 - m)) for m in (scores[place == b].mean() for b in range(6))]
    for b in range(1, 6):  # the two equations of the paper, as they stand
        up = np.log((1 + np.exp(phi[b])) / (1 + np.exp(phi[b - 1])))
        down = np.log((1 + np.exp(-phi[b - 1])) / (1 + np.exp(-phi[b])))
        assert 1 / (1 + np.exp(-np.log(up / down))) == pytest.approx(cuts[b - 1], rel=1e-9)


def test_it_keeps_more_information_than_other_bins() -> None:
    scores = np.sort(np.random.default_rng(1).beta(0.2, 3.0, 2000)).clip(1e-9, 1 - 1e-9)
    ours = information(scores, imax_cuts(scores, 8))
    assert ours > information(scores, np.arange(1, 8) / 8)
    assert ours > information(scores, np.quantile(scores, np.arange(1, 8) / 8))
    assert ours < information(scores, scores[:-1])


def test_two_bins_are_those_of_a_search() -> None:
    scores = np.sort(np.random.default_rng(2).random(60))
    every = [information(scores, scores[i : i + 1]) for i in range(59)]
    assert information(scores, imax_cuts(scores, 2)) == pytest.approx(max(every), abs=1e-12)


def test_the_value_of_a_bin_is_its_frequency(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(2000, 5, 3, torch.float64)
    fitted = IMax(7, share=1).fit(logits, labels)
    edges, levels = fitted.state["edges"][0], fitted.state["levels"][0]
    place = torch.bucketize(logits.softmax(1), edges)
    hits = torch.nn.functional.one_hot(labels, 5).double()
    for b in range(7):
        assert float(hits[place == b].mean()) == pytest.approx(float(levels[b]), abs=1e-12)
    out = fitted(logits)
    assert isinstance(out, Tensor)
    wanted = levels[place] / levels[place].sum(1, keepdim=True)
    torch.testing.assert_close(out.softmax(1), wanted)


@pytest.mark.parametrize("target", ["shared", "classwise"])
def test_it_does_not_destroy_a_model(target: Any, is_harmless: Callable[[str], bool]) -> None:
    assert is_harmless(f'imax(target="{target}")')


def test_one_bin_of_the_top_label_is_the_accuracy(draw_overconfident: Callable[..., Data]) -> None:
    logits, labels = draw_overconfident(300, 3, 3)
    top = IMax(1, "top").fit(logits, labels)(logits)
    assert isinstance(top, Top)
    torch.testing.assert_close(top.confidence, (logits.argmax(1) == labels).float().mean().expand(300))
