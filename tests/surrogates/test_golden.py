"""Values and gradients against the golden numbers of the definitions, in float64."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrant.surrogates import (
    DECE,
    MDCA,
    MMCE,
    SECE,
    AvUC,
    Huber,
    KdeECE,
    SoftAvUC,
    SoftBinnedECE,
    WeightedMMCE,
)

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = json.loads((GOLDEN / "surrogates.json").read_text(encoding="utf-8"))["records"]
SMALL = 1e-9  # a Huber term this narrow is its width times the gap, but for half its width squared


def dca(logits: Tensor, labels: Tensor) -> Tensor:
    """|mean confidence - accuracy|, which has no name of its own: the Huber term beyond its width."""
    return Huber(SMALL)(logits, labels) / SMALL + SMALL / 2


MAKE: dict[str, Callable[[dict[str, Any]], Callable[[Tensor, Tensor], Tensor]]] = {
    "t_mmce": lambda s: MMCE(),
    "t_mmce2": lambda s: MMCE(squared=True),
    "t_mmcew": lambda s: WeightedMMCE(extra_norm=s.get("extra_norm", False)),
    "t_mmcew2": lambda s: WeightedMMCE(squared=True),
    "t_mdca": lambda s: MDCA(),
    "t_dca": lambda s: dca,
    "t_avuc": lambda s: AvUC(s["frac"], s.get("eps", 0.0), s.get("stop", False)),
    "t_savuc": lambda s: SoftAvUC(s["kappa"], s["temp"], s.get("eps", 0.0)),
    "t_sbece": lambda s: SoftBinnedECE(s["bins"], s["temp"], s["p"]),
    "t_dece": lambda s: DECE(s["bins"], s["ta"], s["tb"], s.get("eps", 0.0)),
    "t_sece": lambda s: SECE(
        s["h"], "hard" if s["acc"] == "hard" else "all-pairs", s["loo"], s.get("ta", 100.0)
    ),
    "t_kdeece": lambda s: KdeECE(s["h"]),
}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_value_and_gradient_are_those_of_the_definition(record: dict[str, Any]) -> None:
    with np.load(GOLDEN / "inputs" / f"{record['input']}.npz") as file:
        logits = torch.from_numpy(file["logits"]).double().requires_grad_()
        labels = torch.from_numpy(file["labels"])
    value = MAKE[record["fn"]](record["settings"])(logits, labels)
    (grad,) = torch.autograd.grad(value, logits)
    assert value.item() == pytest.approx(record["value"], abs=1e-9)
    assert grad.norm().item() == pytest.approx(record["grad_l2"], abs=1e-8)
    np.testing.assert_allclose(grad[0], record["grad_row0"], rtol=0, atol=1e-8)


def test_all_records_are_there() -> None:
    assert len(RECORDS) == 184
    assert {record["fn"] for record in RECORDS} == set(MAKE)
