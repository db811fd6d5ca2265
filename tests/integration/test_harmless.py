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
