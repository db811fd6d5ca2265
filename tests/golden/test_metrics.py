"""Every golden number of a metric, from Python and from the command line.

The numbers come from one float64 implementation of the definitions, checked by a second one with another code path
(`metrics.json`, keys `origin` and `definitions`).
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import calibrant as cal
from calibrant.cli import app
from calibrant.core.registry import names

HERE = Path(__file__).parent
RECORDS: list[dict[str, Any]] = json.loads((HERE / "metrics.json").read_text(encoding="utf-8"))["records"]
BY_INPUT = {
    name: list(group)
    for name, group in groupby(sorted(RECORDS, key=lambda r: r["input"]), key=lambda r: r["input"])
}

# float64: fixed point rounds each confidence to 2**-31, so a mean is off by less than 5e-10. float32: a softmax in
# float32 is off by some 1e-7. smece integrates a kinked function on a grid of 4096 cells, and the golden number is an
# adaptive quadrature; kde_ece has its kernel on a grid beyond 2,048 rows, and exp of log densities below.
FLOAT64, FLOAT32, KERNEL = 1e-9, 1e-6, 1e-4


def tolerance(record: dict[str, Any]) -> float:
    if record["spec"].split("(")[0] in ("smece", "kde_ece"):
        return KERNEL
    return FLOAT64 if record["input"].endswith("f64") else FLOAT32


def stored(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / "inputs" / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def from_door(name: str, door: str) -> cal.Predictions | cal.TopLabel:
    arrays = stored(name)
    if door == "logits":
        return cal.Predictions(arrays["logits"], arrays["labels"])
    if door == "probs":
        return cal.Predictions.from_probs(arrays["probs"], arrays["labels"])
    return cal.TopLabel(arrays["conf"], arrays["correct"])


def test_every_record_has_a_door_and_a_metric() -> None:
    assert len(RECORDS) == 219  # nothing is lost on the way from the pack to this folder
    assert {r["door"] for r in RECORDS} == {"logits", "probs", "pairs"}
    named = {r["spec"].split("(")[0] for r in RECORDS}
    assert set(names("metrics")) - named <= {
        "sece"
    }  # SECE has no public reference; its oracle is a slow loop


@pytest.mark.parametrize("record", RECORDS, ids=[r["id"] for r in RECORDS])
def test_value(record: dict[str, Any]) -> None:
    found = cal.evaluate(from_door(record["input"], record["door"]), [record["spec"]])[record["spec"]]
    assert found.reason is None
    assert found.value == pytest.approx(record["value"], rel=0, abs=tolerance(record))


def test_kernel_numbers_are_better_than_promised() -> None:
    # On these inputs both kernel metrics take their exact path or a fine grid; 1e-6 leaves no room for a wrong kernel.
    off = {
        r["id"]: abs(
            cal.evaluate(from_door(r["input"], r["door"]), [r["spec"]])[r["spec"]].value - r["value"]
        )
        for r in RECORDS
        if tolerance(r) == KERNEL
    }
    assert len(off) > 20
    assert max(off.values()) < 1e-6, max(off, key=lambda i: off[i])


# A file with logits and exact probabilities gives the log loss of the logits and the confidences of the probabilities;
# every golden number of `edges_*`, from either door, is therefore what the file itself shows.
@pytest.mark.parametrize("name", BY_INPUT)
def test_command_line(name: str) -> None:
    records = BY_INPUT[name]
    metrics = [option for r in records for option in ("--metrics", r["spec"])]
    done = CliRunner().invoke(app, ["evaluate", str(HERE / "inputs" / f"{name}.npz"), "--json", *metrics])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    arrays = stored(name)
    assert document["n"] == len(arrays["labels"] if "labels" in arrays else arrays["correct"])
    assert document["classes"] == (arrays["logits"].shape[1] if "logits" in arrays else None)
    for r in records:
        assert document["metrics"][r["spec"]]["value"] == pytest.approx(
            r["value"], rel=0, abs=tolerance(r)
        ), r["id"]
