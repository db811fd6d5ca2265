"""What every test stands on: repeatable properties, and predictions whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("calibrant", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("calibrant")

Array = np.ndarray
Draw = Callable[..., tuple[Array, Array]]


def softmax(logits: Array) -> Array:
    """The textbook softmax in float64."""
    e = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def draw_predictions(
    n: int, k: int = 4, *, seed: int = 0, sharpen: float = 1.5, spread: float = 1.5
) -> tuple[Array, Array]:
    """Logits [n, k] in float64 and labels drawn from softmax(logits / sharpen): calibrated when sharpen is 1."""
    rng = np.random.default_rng([seed, n, k])
    logits = spread * rng.standard_normal((n, k))
    ladder = softmax(logits / sharpen).cumsum(axis=1)
    labels = (rng.random((n, 1)) > ladder[:, :-1]).sum(axis=1)
    return logits, labels


@pytest.fixture(scope="session")
def draw() -> Draw:
    """A function of (n, k, seed=, sharpen=): generic predictions, overconfident unless sharpen is 1."""
    return draw_predictions


@pytest.fixture(scope="session")
def inputs() -> Path:
    """The folder of the golden inputs."""
    return Path(__file__).parent / "golden" / "inputs"
