"""Values and gradients of every loss against numbers that were computed elsewhere, from the stated formulas."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.core.objective import objective

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = json.loads((GOLDEN / "losses.json").read_text(encoding="utf-8"))["records"]

# Two float64 implementations of one formula differ by a few units in the last place of sums over at most 128,000
# numbers; the third decimal of these bounds is already generous.
VALUE = 1e-9
GRADIENT = 1e-8
# The same in float32 arithmetic, which the pack measured to be within 5e-6 (margins cancel).
SINGLE = {"value": 1e-5, "gradient": 5e-5}


@cache
def batch(name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(GOLDEN / "inputs" / f"{name}.npz", allow_pickle=False) as file:
        return file["logits"], file["labels"]


def evaluate(record: dict[str, Any], dtype: torch.dtype, second: bool) -> tuple[float, Tensor]:
    """The value and its gradient; `second` asks for a graph of the gradient, which takes the plain definition."""
    logits, labels = batch(record["input"])
    z = torch.from_numpy(logits).to(dtype).requires_grad_()
    value = objective(record["spec"])(z, torch.from_numpy(labels))
    (gradient,) = torch.autograd.grad(value, z, create_graph=second)
    assert value.dtype == gradient.dtype == dtype
    return float(value.detach()), gradient.detach()


def test_all_losses_are_there() -> None:
    named = {record["spec"].split("(")[0].split(" ")[0] for record in RECORDS}
    assert len(RECORDS) == 232
    assert named >= {
        "ce",
        "label_smoothing",
        "focal",
        "inverse_focal",
        "flsd53",
        "dual_focal",
        "brier",
        "mbls",
    }


@pytest.mark.parametrize("second", [False, True], ids=["gradient by hand", "plain definition"])
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"].removeprefix("loss/"))
def test_value_and_gradient(record: dict[str, Any], second: bool) -> None:
    value, gradient = evaluate(record, torch.float64, second)
    assert value == pytest.approx(record["value"], abs=VALUE, rel=VALUE)
    if record["grad_l2"] is not None:  # where two classes tie the rival is arbitrary: no gradient is recorded
        assert float(gradient.norm()) == pytest.approx(record["grad_l2"], abs=GRADIENT, rel=GRADIENT)
        np.testing.assert_allclose(gradient[0].numpy(), record["grad_row0"], rtol=GRADIENT, atol=GRADIENT)


@pytest.mark.parametrize(
    "record",
    [record for record in RECORDS if record["input"].endswith("f32")],
    ids=lambda record: record["id"].removeprefix("loss/"),
)
def test_single_precision(record: dict[str, Any]) -> None:
    value, gradient = evaluate(record, torch.float32, False)
    assert value == pytest.approx(record["value"], rel=SINGLE["value"])
    assert float(gradient.norm()) == pytest.approx(record["grad_l2"], rel=SINGLE["gradient"])
