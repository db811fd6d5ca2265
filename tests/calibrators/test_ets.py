"""Ensemble temperature scaling: golden weights, the conditions of an optimum, and the class."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.calibrators import ETS, Temperature
from calibrant.calibrators.ets import _log_loss, _on_simplex
from calibrant.core.calibration import CalibrationWarning
from calibrant.metrics import ECE, NLL, Brier

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = [
    r
    for r in json.loads((GOLDEN / "calibrators.json").read_text(encoding="utf-8"))["records"]
    if r["fn"] == "c_ets"
]


def stored(name: str) -> tuple[Tensor, Tensor]:
    with np.load(GOLDEN / "inputs" / f"{name}.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["id"])
def test_golden(record: dict[str, Any]) -> None:
    fitted = ETS(record["settings"]["loss"]).fit(*stored(record["input"]))
    golden = record["golden"]
    # T is a root of a slope and exact to 1e-9; the weights are then a convex problem
    assert math.log(float(fitted.state["temperature"]) / golden["T"]) == pytest.approx(0, abs=1e-8)
    np.testing.assert_allclose(fitted.state["weights"], golden["w"], atol=1e-7)
    logits, labels = stored(record["apply_to"])
    out = fitted(logits)
    assert isinstance(out, Tensor)
    for metric, name in ((NLL(), "nll"), (ECE(), "ece15"), (Brier(), "brier")):
        assert metric(out, labels).value == pytest.approx(golden[name], abs=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_weights_meet_the_conditions_of_an_optimum(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    at_label = torch.rand(3, 200, generator=g, dtype=torch.float64) ** torch.tensor(
        [[2.0], [1.0], [0.2 * seed]]
    )
    w = _on_simplex(_log_loss(at_label))
    assert float(w.sum()) == pytest.approx(1, abs=1e-12)
    assert float(w.min()) >= 0
    _, gradient, _ = _log_loss(at_label)(w)
    inside = w > 0
    # equal where a weight is in use, not smaller where it is not: 1e-8 of a slope near 1
    assert float(gradient[inside].max() - gradient.min()) < 1e-8


def test_without_noise_it_is_temperature_scaling() -> None:
    logits, labels = stored("over_f64")
    fitted, plain = ETS().fit(logits, labels), Temperature().fit(logits, labels)
    assert fitted.state["weights"].tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(fitted(logits).softmax(1), plain(logits).softmax(1))  # type: ignore[union-attr]


def test_masked_classes_have_no_part_in_the_uniform_one() -> None:
    logits = torch.tensor([[1.0, 0.0, -torch.inf], [0.0, 2.0, 1.0]])
    state = {"temperature": torch.tensor(1.0), "weights": torch.tensor([0.0, 0.0, 1.0])}
    p = ETS().apply(state, logits).softmax(1)
    torch.testing.assert_close(p, torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]))


def test_the_class_stays_even_if_nothing_is_known() -> None:
    logits = torch.randn(300, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.warns(CalibrationWarning, match="infinity"):
        fitted = ETS().fit(logits, logits.argmin(1))
    assert torch.equal(fitted(logits).argmax(1), logits.argmax(1))  # type: ignore[union-attr]
