"""Generated texts: their posterior is the truth that networks are held against, so it is checked here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.core.errors import SpecError
from calibrant.core.spec import build
from calibrant.data import SyntheticText

SMALL = SyntheticText(classes=4, rows=300, test=20_000, length=9, vocabulary=40, signal=0.3)


def slow_posterior(source: SyntheticText, tokens: list[int]) -> list[float]:
    """Bayes' rule with products of probabilities, word by word."""
    joint = [
        math.prod(float(source.words[k, token]) for token in tokens if token >= 2) / source.classes
        for k in range(source.classes)
    ]
    return [each / math.fsum(joint) for each in joint]


def test_posterior_is_bayes_rule_by_a_slow_loop() -> None:
    inputs = SMALL.load().test.inputs[:50]
    found = SMALL.posterior(inputs)
    assert found.dtype == torch.float64
    # at most nine factors and a quotient in float64 on either side
    np.testing.assert_allclose(
        found, [slow_posterior(SMALL, row) for row in inputs.tolist()], rtol=1e-12, atol=1e-15
    )


def test_words_are_a_common_law_and_one_of_the_class() -> None:
    words = SMALL.words
    zipf = 1 / np.arange(1, 39)
    zipf /= zipf.sum()
    assert (words[:, :2] == 0).all()
    own = (words[:, 2:] - 0.7 * zipf) / 0.3
    np.testing.assert_allclose(np.sort(own)[:, ::-1], np.tile(zipf, (4, 1)), rtol=0, atol=1e-12)
    assert len({tuple(row.argsort()) for row in own}) == 4


def test_labels_follow_the_posterior() -> None:
    test = SMALL.load().test
    posterior, labels = SMALL.posterior(test.inputs), test.labels
    for k in range(4):
        p = posterior[:, k]
        for part in torch.chunk(torch.argsort(p), 10):  # ten levels of probability: sums of independent coins
            spread = float((p[part] * (1 - p[part])).sum().sqrt())
            z = float((labels[part] == k).sum() - p[part].sum()) / spread
            assert abs(z) < 4.5  # forty of them, seeded; one in 150,000 is beyond


def test_words_are_as_frequent_as_their_law_says() -> None:
    test = SMALL.load().test
    for k in range(4):
        tokens = test.inputs[test.labels == k]
        counts = torch.bincount(tokens[tokens > 0], minlength=40).double().numpy()
        expected = SMALL.words[k] * counts.sum()
        z = (counts - expected)[2:] / np.sqrt(expected[2:])
        assert np.abs(z).max() < 4.5  # 152 of them, seeded; one in 150,000 is beyond
        assert counts[:2].sum() == 0


def test_lengths_tell_nothing_of_the_class() -> None:
    test = SMALL.load().test
    lengths = (test.inputs > 0).sum(1)
    assert set(lengths.tolist()) == {5, 6, 7, 8, 9}
    behind = torch.arange(9) >= lengths[:, None]
    assert bool((test.inputs[behind] == 0).all())
    # a mean of 5,000 lengths of standard deviation 1.4 has the error 0.02
    means = [float(lengths[test.labels == k].double().mean()) for k in range(4)]
    assert means == pytest.approx([7] * 4, abs=0.09)


def test_no_signal_leaves_every_class_as_likely() -> None:
    source = SyntheticText(classes=5, rows=10, test=10, signal=0)
    torch.testing.assert_close(
        source.posterior(source.load().test.inputs), torch.full((10, 5), 0.2, dtype=torch.float64)
    )


def test_unknown_words_and_padding_count_nothing() -> None:
    row = torch.tensor([[5, 9, 3, 0, 0]], dtype=torch.int32)
    more = torch.tensor([[1, 5, 1, 9, 3]], dtype=torch.int32)
    torch.testing.assert_close(SMALL.posterior(row), SMALL.posterior(more), rtol=0, atol=1e-15)
    empty = torch.zeros((1, 5), dtype=torch.int32)
    torch.testing.assert_close(SMALL.posterior(empty), torch.full((1, 4), 0.25, dtype=torch.float64))


def test_seeds_repeat_and_differ_and_test_does_not_depend_on_train() -> None:
    one, two = (
        SMALL.load(),
        build(
            "synthetic-text(classes=4, rows=9, test=20000, length=9, vocabulary=40, signal=0.3)", "datasets"
        ).load(),
    )
    assert torch.equal(one.test.inputs, two.test.inputs)
    assert torch.equal(one.test.labels, two.test.labels)
    assert one.train.ids.tolist() == list(range(300))
    assert one.test.ids[0] == 300
    other = SyntheticText(classes=4, rows=300, test=300, length=9, vocabulary=40, signal=0.3, seed=1).load()
    assert not torch.equal(other.train.inputs, one.train.inputs)
    assert one.shape.vocabulary == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 1}, "classes must be from 2"),
        ({"rows": 0}, "rows must be from 1"),
        ({"test": 0}, "test must be from 1"),
        ({"seed": -1}, "seed must be from 0"),
        ({"signal": 1.5}, "signal must be from 0 to 1, not 1.5"),
        ({"signal": float("nan")}, "signal must be from 0 to 1"),
        ({"vocabulary": 2}, "vocabulary must be from 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SyntheticText(**arguments)
