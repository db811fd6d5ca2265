"""Beta calibration: the golden fit, SciPy's bounded optimum, and the top label."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.calibrators import Beta, Identity, Platt
from calibrant.calibrators.logistic_fit import ask, fit_logistic
from calibrant.core.calibration import Top

GOLDEN = Path(__file__).parents[1] / "golden"


def stored(name: str) -> tuple[Tensor, Tensor]:
    with np.load(GOLDEN / "inputs" / f"{name}.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])


def batch(n: int, k: int, sharpen: float = 1.5) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(n)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return sharpen * z, z.softmax(1).multinomial(1, generator=g)[:, 0]


def test_golden() -> None:
    records = json.loads((GOLDEN / "calibrators.json").read_text(encoding="utf-8"))["records"]
    record = next(r for r in records if r["fn"] == "c_beta")
    fitted = Beta().fit(*stored(record["input"]))
    golden = record["golden"]
    for name in ("a", "b", "c"):  # Newton's method ends at rounding
        assert float(fitted.state[name]) == pytest.approx(golden[name], abs=1e-8)
    logits, labels = stored(record["apply_to"])
    p = fitted(logits).softmax(1)  # type: ignore[union-attr]
    assert float(-p.gather(1, labels[:, None]).log().mean()) == pytest.approx(golden["nll"], abs=1e-8)
    assert float((p[:, 1] - labels).square().mean()) == pytest.approx(golden["brier_binary"], abs=1e-8)


@pytest.mark.parametrize("tilt", [(1.0, 1.0), (1.5, -0.6), (-0.8, 1.2), (-1.0, -1.0)])
def test_bounds_are_kept_exactly(tilt: tuple[float, float]) -> None:
    """Answers drawn so that the free optimum has the signs of `tilt`: the bounded one is SciPy's."""
    g = torch.Generator().manual_seed(5)
    s = torch.rand(3000, 1, generator=g, dtype=torch.float64) * 0.98 + 0.01
    f, h = s.log(), -torch.log1p(-s)
    hits = torch.rand(3000, 1, generator=g, dtype=torch.float64) < (tilt[0] * f + tilt[1] * h + 0.2).sigmoid()
    start = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    rows = ask([f, h], hits, torch.ones_like(hits), False, falling=False)
    theta = fit_logistic(rows, start, bounded=2)[0]

    def value(t: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient, _ = rows.sums(torch.from_numpy(t)[None])
        return float(loss), gradient[0].numpy()

    wanted = minimize(
        value, start.numpy(), jac=True, method="L-BFGS-B", bounds=[(0, None), (0, None), (None, None)],
        options={"ftol": 1e-15, "gtol": 1e-10},
    )  # fmt: skip
    assert value(theta.numpy())[0] <= float(wanted.fun) + 1e-12
    np.testing.assert_allclose(theta, wanted.x, atol=2e-4)  # as far as SciPy's stop tells
    for j in (0, 1):
        assert theta[j] == 0 if tilt[j] < 0 and wanted.x[j] == 0 else theta[j] >= 0


def test_identity_and_platt_are_inside() -> None:
    logits, labels = batch(800, 4)
    ones, zero = torch.ones(4), torch.zeros(4)
    out = Beta().apply({"a": ones, "b": ones, "c": zero}, logits)
    assert isinstance(out, Tensor)
    torch.testing.assert_close(out.softmax(1), Identity().apply({}, logits).softmax(1))
    platt = Platt().fit(logits[:, :2], (labels % 2)).state
    state = {"a": platt["weight"], "b": platt["weight"], "c": platt["bias"]}
    same = Beta().apply(state, logits[:, :2])
    torch.testing.assert_close(same, Platt().apply(platt, logits[:, :2]))


def test_the_top_label_keeps_the_class_and_repairs_confidence() -> None:
    fit, held = batch(4000, 5), batch(4001, 5)
    fitted = Beta("top").fit(*fit)
    out = fitted(held[0])
    assert isinstance(out, Top)
    assert torch.equal(out.predicted, held[0].argmax(1))
    raw = held[0].softmax(1).amax(1)
    correct = (out.predicted == held[1]).double()
    # the mean over 4,000 rows is known to 0.007, on either side; the raw one is off by some 0.1
    assert abs(float((out.confidence - correct).mean())) < 0.03 < float((raw - correct).mean())
    order = raw.argsort()
    assert bool((out.confidence[order].diff() >= 0).all())


def test_confidence_that_rounds_to_one_is_still_ranked() -> None:
    logits = torch.tensor([[40.0, 0.0, 0.0], [60.0, 0.0, 0.0], [5.0, 4.0, 0.0], [3.0, 2.0, 0.0]])
    fitted = Beta("top").fit(logits, torch.tensor([0, 1, 1, 0]))
    out = fitted(logits)
    assert isinstance(out, Top)
    assert bool(((out.confidence > 0) & (out.confidence <= 1)).all())


def test_one_answer_teaches_nothing() -> None:
    logits, labels = batch(50, 3)
    state = Beta("top").fit(logits, logits.argmax(1)).state
    assert [float(state[name]) for name in ("a", "b", "c")] == [1.0, 1.0, 0.0]
    unseen = Beta().fit(logits[labels != 0], labels[labels != 0]).state
    assert [float(unseen[name][0]) for name in ("a", "b", "c")] == [1.0, 1.0, 0.0]
