"""The synthetic source is the truth that estimators are held against, so its own truth is checked here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression

import calibrant as cal
from calibrant.core.samples import Dataset, InputShape
from calibrant.core.spec import build
from calibrant.data import Synthetic
from calibrant.data.splits import split


def gaps(source: Synthetic, n: int = 200_000, seed: int = 1) -> np.ndarray:
    """Confidence minus the true probability of being right, row by row."""
    predictions, posterior = source.draw(n, seed)
    probs = predictions.logits.double().softmax(1)
    top, index = probs.max(dim=1)
    return np.asarray(top - posterior.gather(1, index[:, None])[:, 0])


# A shift is exact as far as it fits: confidence - error has to stay inside [0, 1].
@pytest.mark.parametrize(
    ("classes", "error"), [(3, 0.0), (3, 0.02), (3, 0.1), (3, 0.3), (10, 0.02), (10, 0.1), (2, 0.5)]
)
def test_a_shift_is_the_error_of_every_row(classes: int, error: float) -> None:
    found = gaps(Synthetic(classes=classes, error=error), 20_000)
    np.testing.assert_allclose(found, error, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("classes", "error"), [(3, -0.02), (3, -0.1), (10, -0.1), (10, 0.3)])
def test_the_promised_error_is_the_mean_error(classes: int, error: float) -> None:
    """Where the shift does not fit every row it must be made up for, or refused: the source says that it is exact."""
    try:
        source = Synthetic(classes=classes, error=error)
    except cal.CalibrantError:
        return
    found = gaps(source)
    assert np.abs(found).mean() == pytest.approx(abs(error), abs=1e-3)
    assert found.mean() == pytest.approx(error, abs=1e-3)


@pytest.mark.parametrize(
    ("classes", "error", "spread"),
    [(3, 0.02, 2.0), (3, 0.1, 1.0), (10, 0.1, 2.0), (3, -0.05, 2.0), (2, 0.0, 1.0)],
)
def test_a_temperature_has_the_error_on_average(classes: int, error: float, spread: float) -> None:
    found = gaps(Synthetic(classes=classes, error=error, truth="temperature", spread=spread))
    # T is set on 200,000 rows and checked on as many others: the gap scatters by 0.1 at most, so 2e-4 each
    assert np.abs(found).mean() == pytest.approx(abs(error), abs=1e-3)
    assert found.mean() == pytest.approx(error, abs=1e-3)
    assert (np.sign(found) == np.sign(error)).all() or abs(error) < 1e-9  # one sign for all rows


@pytest.mark.parametrize("truth", ["shift", "temperature"])
def test_labels_follow_the_posterior(truth: str) -> None:
    predictions, posterior = Synthetic(classes=4, error=0.05, truth=truth).draw(100_000, seed=2)
    assert posterior.dtype == torch.float64
    np.testing.assert_allclose(posterior.sum(1), 1, rtol=0, atol=1e-12)
    assert bool((posterior >= 0).all())
    labels = predictions.labels
    for k in range(4):
        p = posterior[:, k]
        order = torch.argsort(p)
        for part in torch.chunk(order, 10):  # ten levels of probability each: a sum of independent coins
            z = float((labels[part] == k).sum() - p[part].sum()) / float(
                (p[part] * (1 - p[part])).sum().sqrt()
            )
            assert abs(z) < 4.5  # forty of them, seeded; one in 150,000 is beyond


def test_no_error_is_calibrated() -> None:
    predictions, posterior = Synthetic(classes=5).draw(5_000, seed=3)
    torch.testing.assert_close(posterior, predictions.logits.double().softmax(1), rtol=0, atol=1e-12)
    null = cal.evaluate(predictions, ["ece"])["ece"].null
    assert null is not None
    assert null.p > 1e-3


def test_seeds_repeat_and_differ() -> None:
    source = Synthetic(classes=3, error=0.1)
    one, two, other = source.draw(50, 1)[0], source.draw(50, 1)[0], source.draw(50, 2)[0]
    assert one.sha256 == two.sha256 != other.sha256
    assert one.logits.dtype == torch.float32
    assert one.meta["dataset"] == "synthetic"


def test_logits_have_the_spread() -> None:
    logits = Synthetic(classes=3, spread=1.5).draw(20_000, 4)[0].logits
    assert stats.kstest(logits.flatten().numpy(), stats.norm(0, 1.5).cdf).pvalue > 1e-3


def test_the_dataset_hands_over_rows_of_the_same_world() -> None:
    """Labels follow the same posterior: the classes of all rows, against its sum, are a sum of independent coins."""
    source = Synthetic(classes=4, error=0.05, train=20_000, test=5_000)
    published = source.load()
    assert published.shape == InputShape("vector", (4,))
    assert published.train.inputs.dtype == torch.float32
    assert published.train.inputs.shape == (20_000, 4)
    assert torch.equal(torch.cat([published.train.ids, published.test.ids]), torch.arange(25_000))
    for part in (published.train, published.test):
        p = source.posterior(part.inputs)
        hits = torch.nn.functional.one_hot(part.labels, 4).double()
        z = (hits - p).sum(0) / (p * (1 - p)).sum(0).sqrt()
        assert z.abs().max() < 4.5  # eight of them, seeded
        nll = -p.gather(1, part.labels[:, None]).log()
        entropy = -(p * p.log()).sum(1)
        assert abs(float(nll.mean() - entropy.mean())) < 4.5 * float(nll.std()) / len(part) ** 0.5


def test_rows_of_the_dataset_repeat_and_are_never_those_of_draw() -> None:
    small, large = Synthetic(train=500, test=300).load(), Synthetic(train=900, test=400).load()
    for part in ("train", "test"):
        few, many = getattr(small, part), getattr(large, part)
        assert torch.equal(few.inputs, many.inputs[: len(few)])
        assert torch.equal(few.labels, many.labels[: len(few)])
    rows = torch.cat([large.train.inputs, large.test.inputs, Synthetic().draw(900, seed=0)[0].logits])
    assert len(rows.unique(dim=0)) == 2_200


def test_the_true_error_of_a_trained_network_is_known() -> None:
    """Logistic regression, the posterior's own family, recovers it; the same logits doubled are as wrong as they look.

    With 20,000 rows each of 3 x 4 weights is known to about 0.03, and so a confidence to about 0.01.
    """
    source = Synthetic(train=20_000)
    published = source.load()
    z, y = published.train.inputs.numpy(), published.train.labels.numpy()
    found = LogisticRegression(C=1e6).fit(z, y)
    fresh = source.draw(50_000, seed=9)[0].logits  # as many new inputs as one likes
    logits = torch.from_numpy(found.decision_function(fresh.numpy()))

    def true_gap(logits: torch.Tensor) -> torch.Tensor:
        confidence, predicted = logits.softmax(1).max(1)
        return confidence - source.posterior(fresh).gather(1, predicted[:, None])[:, 0]

    assert true_gap(logits).abs().mean() < 0.01
    assert float(true_gap(2 * logits).mean()) == pytest.approx(
        0.116, abs=0.01
    )  # the input doubled, of 1,000,000 rows
    assert true_gap(fresh.double()).abs().max() < 1e-12  # the network that returns its input


def test_it_trains_by_name_with_its_sizes() -> None:
    found = build("synthetic(classes=100, spread=4, train=1000, test=500)", "datasets")
    assert isinstance(found, Dataset)
    parts = split(found.load(), "8:1:1")
    assert [len(p) for p in (parts.train, parts.val, parts.meta, parts.test)] == [800, 100, 100, 500]
    assert parts.train.labels.max() < 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 1}, "classes must be at least 2, not 1"),
        ({"spread": 0.0}, "spread must be positive"),
        ({"train": 0}, "train must be at least 1 row, not 0"),
        ({"test": -5}, "test must be at least 1 row, not -5"),
        ({"error": 0.9}, "error lies between 0 and 0.333"),
        ({"error": float("nan")}, "error"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(cal.CalibrantError, match=message):
        Synthetic(**arguments)


def test_an_error_out_of_reach_of_any_temperature_is_refused() -> None:
    # flattening all the way moves 3 classes of spread 0.1 by some hundredths: 0.3 cannot be had
    with pytest.raises(cal.CalibrantError):
        Synthetic(classes=3, error=0.3, truth="temperature", spread=0.1).draw(10)
