"""On a network that was trained here, and is overconfident, no calibrator's default does harm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import calibrant as cal
from calibrant.core.registry import describe

FULL = [entry.name for entry in describe("calibrators") if entry.piece().scope == "full"]
NAIVE = [
    "matrix(strength=0)",
    "dirichlet(strength=0)",
    'histogram(scheme="mass", target="classwise", share=1)',
]

WANTS_ROWS = {
    "vector": "200 numbers without a penalty: 0.02 of log loss is the price of 5,000 rows, as its docstring says",
    "platt": "200 numbers, one regression a class: the same price",
    "beta": "300 numbers, one regression a class: the same price",
    "scaling_binning": "one value a bin: where nothing is to be repaired the bins only lose",
    "iop": "five slopes and intercepts on top of temperature: 0.001 of log loss, two standard errors",
}
"""What pays for its freedom where there is nothing to gain; `auto` does not choose it there."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> cal.Trained:
    """100 classes, 15,000 rows to train on until they are known by heart, 5,000 val and 8,000 test rows."""
    run = cal.Run(
        data="synthetic(classes=100, spread=4, train=20000, test=8000)",
        model="mlp(width=128)",
        split="3:1",
        recipe=cal.recipe("short", epochs=8),
    )
    found: cal.Trained = cal.train(run, Path(tmp_path_factory.mktemp("runs")) / "overconfident", device="cpu")
    return found


def losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The log loss and the error of each row."""
    loss = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    return loss, (logits.argmax(1) != labels).double()


def harm(trained: cal.Trained, spec: str) -> list[float]:
    """By how many standard errors log loss and error of test are worse than without the calibrator."""
    val, test = trained.val, trained.test
    out = cal.calibrator(spec).fit(val.logits, val.labels)(test.logits)
    assert isinstance(out, Tensor)
    before = losses(test.logits, test.labels)
    return [in_standard_errors(*pair) for pair in zip(losses(out, test.labels), before, strict=True)]


def in_standard_errors(after: Tensor, before: Tensor) -> float:
    """The mean of a paired difference in its own standard errors; no difference at all is 0."""
    difference = after - before
    return float(difference.mean() / (difference.std() / len(difference) ** 0.5).clamp(min=1e-12))


def test_the_network_is_one_that_wants_repair(trained: cal.Trained) -> None:
    val, test = trained.val, trained.test
    assert (val.n, test.n, val.classes) == (5000, 8000, 100)
    confidence, predicted = test.logits.softmax(1).max(1)
    assert float(confidence.mean()) > float((predicted == test.labels).double().mean()) + 0.05


@pytest.mark.parametrize("name", FULL)
def test_a_default_makes_neither_log_loss_nor_error_worse(trained: cal.Trained, name: str) -> None:
    assert max(harm(trained, name)) <= 2


@pytest.mark.parametrize("spec", NAIVE)
def test_the_textbook_forms_do_harm_here(trained: cal.Trained, spec: str) -> None:
    assert max(harm(trained, spec)) > 2, "the test above would pass whatever a default does"


@pytest.mark.parametrize("name", [name for name in FULL if name not in WANTS_ROWS])
def test_a_calibrated_model_of_100_classes_is_not_harmed(name: str) -> None:
    (logits, labels), (unseen, truth) = calibrated(5000, seed=1), calibrated(10_000, seed=2)
    out = cal.calibrator(name).fit(logits, labels)(unseen)
    assert isinstance(out, Tensor)
    pairs = zip(losses(out, truth), losses(unseen, truth), strict=True)
    assert all(in_standard_errors(*pair) <= 2 for pair in pairs)


def calibrated(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits and labels that are drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.2 * torch.randn(n, 100, generator=generator, dtype=torch.float64)
    return logits.float(), logits.softmax(1).multinomial(1, generator=generator)[:, 0]
