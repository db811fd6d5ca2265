"""Platt scaling: golden fits, scikit-learn's, and what happens where no fit exists."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from calibrant.calibrators import Identity, Platt
from calibrant.calibrators.odds import log_odds

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = [
    r
    for r in json.loads((GOLDEN / "calibrators.json").read_text(encoding="utf-8"))["records"]
    if r["fn"] == "c_platt"
]


def stored(name: str) -> tuple[Tensor, Tensor]:
    with np.load(GOLDEN / "inputs" / f"{name}.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])


def batch(n: int, k: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return 1.5 * z, (z + 0.5 * torch.arange(k) % 1).softmax(1).multinomial(1, generator=g)[:, 0]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["id"])
def test_golden(record: dict[str, Any]) -> None:
    fitted = Platt(**record["settings"]).fit(*stored(record["input"]))
    golden = record["golden"]
    # Newton's method ends at rounding, and so does the golden number
    assert float(fitted.state["weight"]) == pytest.approx(golden["A"], abs=1e-8)
    assert float(fitted.state["bias"]) == pytest.approx(golden["B"], abs=1e-8)
    logits, labels = stored(record["apply_to"])
    p = fitted(logits).softmax(1)  # type: ignore[union-attr]
    nll = -p.gather(1, labels[:, None]).log().mean()
    assert float(nll) == pytest.approx(golden["nll"], abs=1e-8)
    brier = (p[:, 1] - labels).square().mean()
    assert float(brier) == pytest.approx(golden["brier_binary"], abs=1e-8)


def test_each_class_is_a_logistic_regression_against_the_rest() -> None:
    logits, labels = batch(500, 4)
    state = Platt().fit(logits, labels).state
    log_p, rest, _ = log_odds(logits)
    for k in range(4):
        score = (log_p - rest)[:, k : k + 1].numpy()
        other = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(score, labels.numpy() == k)
        assert float(state["weight"][k]) == pytest.approx(other.coef_[0, 0], abs=1e-5)  # lbfgs stops there
        assert float(state["bias"][k]) == pytest.approx(other.intercept_[0], abs=1e-5)


def test_identity_is_a_state_and_rows_sum_to_one() -> None:
    logits, labels = batch(200, 5)
    logits[0, (labels[0] + 1) % 5] = -torch.inf
    state = {"weight": torch.ones(5), "bias": torch.zeros(5)}
    out = Platt().apply(state, logits)
    torch.testing.assert_close(out.softmax(1), Identity().apply({}, logits).softmax(1))
    two = Platt().apply({"weight": torch.ones(1), "bias": torch.zeros(1)}, logits[1:, :2])
    torch.testing.assert_close(two.softmax(1), logits[1:, :2].softmax(1))


def test_log_odds_of_what_is_nearly_certain_are_not_rounded_away() -> None:
    log_p, rest, seen = log_odds(torch.tensor([[200.0, 0.0, -torch.inf], [0.0, 1.0, 2.0]]))
    assert float(rest[0, 0]) == pytest.approx(-200)
    assert float(log_p[0, 1]) == pytest.approx(-200)
    assert float(rest[1, 2]) == pytest.approx(
        float(torch.tensor([0.0, 1.0, 2.0]).log_softmax(0)[:2].logsumexp(0))
    )
    assert seen.tolist() == [[True, True, False], [True, True, True]]


def test_a_class_that_is_parted_without_error_gets_platts_targets() -> None:
    logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    labels = torch.tensor([0, 0, 1, 1])
    smooth = float(Platt(smooth=True).fit(logits, labels).state["weight"])
    parted = float(
        Platt().fit(logits, labels).state["weight"]
    )  # it may not be worse than the logits, and goes back
    assert smooth < parted <= 1
    assert float(Platt().fit(0.1 * logits, labels).state["weight"]) == pytest.approx(10 * smooth)


def test_a_class_without_a_label_keeps_its_logit() -> None:
    logits, labels = batch(300, 4)
    state = Platt().fit(logits[labels != 2], labels[labels != 2]).state
    assert (float(state["weight"][2]), float(state["bias"][2])) == (1.0, 0.0)
    assert float((state["weight"] - 1).abs()[[0, 1, 3]].min()) > 0.01


def test_classes_are_not_worse_together() -> None:
    g = torch.Generator().manual_seed(3)
    for n in (8, 12, 20, 40):
        logits = torch.randn(n, 6, generator=g, dtype=torch.float64)
        labels = logits.softmax(1).multinomial(1, generator=g)[:, 0]
        after = Platt().fit(logits, labels)(logits)
        assert isinstance(after, Tensor)
        loss = torch.nn.functional.cross_entropy
        assert float(loss(after, labels)) <= float(loss(logits, labels)) + 1e-12
