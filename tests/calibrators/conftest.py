"""What tests of calibrators share: the golden inputs and records, and a model that is overconfident at K = 100."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.core.spec import build

GOLDEN = Path(__file__).parents[1] / "golden"
Data = tuple[Tensor, Tensor]


@pytest.fixture(scope="session")
def stored() -> Callable[[str], Data]:
    """Logits and labels of a golden input."""

    def read(name: str) -> Data:
        with np.load(GOLDEN / "inputs" / f"{name}.npz", allow_pickle=False) as file:
            return torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])

    return read


@pytest.fixture(scope="session")
def golden() -> Callable[[str], list[dict[str, Any]]]:
    """The golden records of one definition."""
    text = (GOLDEN / "calibrators.json").read_text(encoding="utf-8")
    records: list[dict[str, Any]] = json.loads(text)["records"]
    return lambda name: [record for record in records if record["fn"] == name]


def overconfident(n: int, classes: int, seed: int, dtype: torch.dtype = torch.float32) -> Data:
    """Labels are drawn from softmax(z), and the model says softmax(1.8 z)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return (1.8 * logits).to(dtype), labels


@pytest.fixture(scope="session")
def draw_overconfident() -> Callable[..., Data]:
    """A function of (n, classes, seed, dtype)."""
    return overconfident


def against_identity(after: Tensor, before: Tensor) -> float:
    """The mean difference in its own paired standard errors; above 2 is worse. No difference at all is 0."""
    difference = (after - before).double()
    return float(difference.mean() / (difference.std() / len(difference) ** 0.5).clamp(min=1e-12))


@pytest.fixture(scope="session")
def is_harmless() -> Callable[[str], bool]:
    """Whether 5,000 fit rows of 100 classes make neither held-out log loss nor error worse, by two standard errors."""
    fit, (logits, labels) = overconfident(5000, 100, seed=1), overconfident(10_000, 100, seed=2)

    def losses(z: Tensor) -> tuple[Tensor, Tensor]:
        loss = -z.double().log_softmax(1).gather(1, labels[:, None])[:, 0]
        return loss, (z.argmax(1) != labels).double()

    before = losses(logits)

    def judge(spec: str) -> bool:
        out = build(spec, "calibrators").fit(*fit)(logits)
        return all(against_identity(a, b) <= 2 for a, b in zip(losses(out), before, strict=True))

    return judge
