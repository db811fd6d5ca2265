"""Temperature scaling: golden optima, the grid of document 002, and what is said where no temperature is best."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.calibrators import Identity, Temperature
from calibrant.core.calibration import CalibrationWarning
from calibrant.core.errors import CalibrantError
from calibrant.core.temperature import GRID
from calibrant.metrics import ECE, NLL, Brier

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = [
    r
    for r in json.loads((GOLDEN / "calibrators.json").read_text(encoding="utf-8"))["records"]
    if r["fn"] in ("c_ts_nll", "c_ts_ece")
]


def stored(name: str) -> tuple[Tensor, Tensor]:
    with np.load(GOLDEN / "inputs" / f"{name}.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["id"])
def test_golden(record: dict[str, Any]) -> None:
    objective = "nll" if record["fn"] == "c_ts_nll" else "ece"
    fitted = Temperature(objective=objective).fit(*stored(record["input"]))
    found, golden = float(fitted.state["temperature"]), record["golden"]
    logits, labels = stored(record["apply_to"])
    out = fitted(logits.double())
    assert isinstance(out, Tensor)
    # 1e-6 in ln T is the promise; scores are flat there, so that they are better. The grid has one exact answer.
    assert abs(math.log(found / golden["T"])) < (1e-6 if objective == "nll" else 1e-12)
    assert NLL()(out, labels).value == pytest.approx(golden["nll"], abs=1e-7)
    assert ECE()(out, labels).value == pytest.approx(golden["ece15"], abs=1e-7)
    assert Brier()(out, labels).value == pytest.approx(golden["brier"], abs=1e-7)


def test_one_temperature_for_all_and_the_class_stays() -> None:
    logits, labels = stored("over_f32")
    logits[0, 9] = -torch.inf
    fitted = Temperature().fit(logits, labels)
    out = fitted(logits)
    assert isinstance(out, Tensor)
    assert torch.equal(out.argmax(1), logits.argmax(1))
    assert out[0, 9] == -torch.inf
    assert out.dtype == torch.float32
    assert NLL()(out, labels).value < NLL()(logits, labels).value
    again = Temperature().fit(out, labels)  # what is calibrated stays: 1e-7 is float32 rounding of the logits
    assert float(again.state["temperature"]) == pytest.approx(1, abs=1e-6)


def test_temperature_1_is_identity() -> None:
    logits, _ = stored("over_f64")
    state = {"temperature": torch.tensor(1.0, dtype=torch.float64)}
    assert torch.equal(Temperature().apply(state, logits), Identity().apply({}, logits))


@pytest.mark.parametrize(
    ("logits", "label", "says", "used"),
    [
        ([2.0, 0.0, -1.0], 0, "every row is right", 3e-3),
        ([2.0, 0.0, -1.0], 2, "T goes to infinity", 3e3),
        ([1.0, 1.0, 1.0], 0, "equal", 1.0),
    ],
)
def test_an_optimum_at_infinity_is_said(logits: list[float], label: int, says: str, used: float) -> None:
    with pytest.warns(CalibrationWarning, match=says):
        fitted = Temperature().fit(torch.tensor([logits] * 3), torch.tensor([label] * 3))
    assert float(fitted.state["temperature"]) == pytest.approx(used)


def test_a_temperature_at_the_end_of_the_grid_is_said() -> None:
    logits, labels = stored("over_f64")
    with pytest.warns(CalibrationWarning, match="end of the grid"):
        fitted = Temperature("ece", highest=1.5).fit(logits, labels)
    assert float(fitted.state["temperature"]) == 1.5


def test_the_grid_is_that_of_document_002() -> None:
    assert Temperature().grid == GRID
    assert Temperature(lowest=0.3, highest=0.7, step=0.2).grid == pytest.approx((0.3, 0.5, 0.7))
    assert Temperature(lowest=1.5, highest=9, step=2.5).grid == (1.5, 4.0, 6.5, 9.0)
    assert Temperature(lowest=2, highest=2).grid == (2.0,)


@pytest.mark.parametrize("bad", [{"lowest": 0.0}, {"step": -1.0}, {"highest": 0.001}, {"step": 1e-9}])
def test_no_such_grid(bad: dict[str, float]) -> None:
    with pytest.raises(CalibrantError, match="grid"):
        Temperature("ece", **bad)
