"""Vector, matrix, Dirichlet and structured maps: golden optima, SciPy's, limits, and defaults on few rows."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.calibrators import Dirichlet, Identity, Matrix, Structured, Temperature, Vector, softmax_fit
from calibrant.core.calibration import CalibrationWarning
from calibrant.core.errors import CalibrantError
from calibrant.metrics import ECE, NLL, Brier

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = [
    r
    for r in json.loads((GOLDEN / "calibrators.json").read_text(encoding="utf-8"))["records"]
    if r["fn"] in ("c_vector", "c_matrix", "c_dirichlet")
]


def stored(name: str) -> tuple[Tensor, Tensor]:
    with np.load(GOLDEN / "inputs" / f"{name}.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])


def batch(n: int, k: int, seed: int = 0, bias: float = 0.0, sharpen: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits with one clear class a row; labels of softmax(logits / sharpen + bias of the class)."""
    g = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(n, k, generator=g)
    z[torch.arange(n), torch.randint(0, k, (n,), generator=g)] += 5
    shift = bias * torch.randn(k, generator=torch.Generator().manual_seed(99))
    return z * sharpen, (z + shift).softmax(1).multinomial(1, generator=g)[:, 0]


def log_loss(logits: Any, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits.double(), labels, reduction="none")


def make(record: dict[str, Any]) -> Any:
    s = record["settings"]
    if record["fn"] == "c_vector":
        return Vector()
    if record["fn"] == "c_dirichlet":
        return Dirichlet(s["lam"], s["mu"])
    penalty = s.get("target", "off_diagonal")
    return Matrix(s.get("lam", 0.0), s.get("lam", 0.0) if s.get("bias_pen") else 0.0, penalty=penalty)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["id"])
def test_golden(record: dict[str, Any]) -> None:
    fitted = make(record).fit(*stored(record["input"]))
    golden, s = record["golden"], record["settings"]
    weight, bias = fitted.state["weight"], fitted.state["bias"]
    wanted = torch.tensor(golden.get("W", golden.get("w"))).double()
    intercept = torch.tensor(golden["b"]).double()
    if record["fn"] == "c_matrix" and not s:  # without a penalty any row may be added to all rows
        weight, wanted = weight - weight.mean(0), wanted - wanted.mean(0)
    if not (s.get("mu") or s.get("bias_pen")):
        bias, intercept = bias - bias.mean(), intercept - intercept.mean()
    # the golden optimum itself is known to 1e-7 of its loss, and a flat direction has some 1e-8 of a weight
    torch.testing.assert_close(weight, wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(bias, intercept, rtol=0, atol=1e-6)
    logits, labels = stored(record["apply_to"])
    out = fitted(logits.double())
    assert isinstance(out, Tensor)
    for metric, name in ((NLL(), "nll"), (ECE(), "ece15"), (Brier(), "brier")):
        assert metric(out, labels).value == pytest.approx(golden[name], abs=1e-6)


def test_many_classes_reach_the_optimum_of_scipy() -> None:
    """30 classes: no whole Hessian here; SciPy from another start, both by the definition of the penalised loss."""
    k, strength, intercept = 30, 0.5, 0.2
    logits, labels = batch(400, k, bias=0.5)
    z, off = logits.double(), 1 - torch.eye(k).double()

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(flat).requires_grad_()
        w, b = theta[: k * k].view(k, k), theta[k * k :]
        penalty = strength * (off * w * w).sum() / (k * (k - 1)) + intercept * (b * b).sum() / k
        total = log_loss(z @ w.t() + b, labels).mean() + penalty
        total.backward()  # type: ignore[no-untyped-call]
        assert theta.grad is not None
        return total.item(), theta.grad.numpy()

    start = np.concatenate([0.3 * np.eye(k).ravel(), np.zeros(k)])
    wanted = minimize(
        value, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    )
    state = Matrix(strength, intercept).fit(z, labels).state
    found = value(torch.cat([state["weight"].flatten(), state["bias"]]).numpy())[0]
    assert found == pytest.approx(float(wanted.fun), abs=1e-9)  # of the loss; what SciPy's stop leaves


def parted(n: int, k: int) -> tuple[Tensor, Tensor]:
    """A sharp network that is right three times in four: some classes are parted from the rest without error."""
    g = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(n, k, generator=g, dtype=torch.float64)
    labels = torch.randint(0, k, (n,), generator=g)
    logits[torch.arange(n), labels] += 8
    wrong = torch.rand(n, generator=g) < 0.25
    logits[wrong, torch.randint(0, k, (int(wrong.sum()),), generator=g)] += 9
    return 1.5 * logits, labels


@pytest.mark.parametrize(
    ("calibrator", "rows", "classes"),
    [
        (Vector(), 1500, 220),
        (Vector(), 1000, 100),
        (Matrix(strength=0.01), 500, 22),
        (Matrix(strength=0), 300, 8),
    ],
    ids=str,
)
def test_an_optimum_far_away_is_reached(
    calibrator: Any, rows: int, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the gain that a whole Hessian promises at the end, in float64, and by the work that it took to get there."""
    logits, labels = parted(rows, classes)
    looks, ends = 0, []
    total, descend = softmax_fit._total, softmax_fit._newton_cg

    def counted(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        return total(*given)

    def watched(task: Any, bent: Any, penalty: Any, theta: Tensor, enough: float) -> Tensor:
        found = descend(task, bent, penalty, theta, enough)
        ends.append((task, penalty, found))
        return found

    monkeypatch.setattr(softmax_fit, "_total", counted)
    monkeypatch.setattr(softmax_fit, "_newton_cg", watched)
    calibrator.fit(logits, labels)
    task, penalty, theta = ends[-1]
    _, gradient = total(task, penalty, theta)
    hessian = task.hessian(theta)
    hessian.diagonal().add_(2 * penalty.weight.flatten())
    step = torch.linalg.solve(hessian, gradient.flatten())
    assert (
        float(step @ gradient.flatten()) < 2e-11
    )  # 1e-11 is where it stops, of a step that is right to a tenth
    assert looks < 400  # L-BFGS alone took 1,600 with 1,000 such classes


def test_float32_of_a_large_fit_ends_in_float64() -> None:
    logits, labels = batch(20_000, 8, bias=0.5)
    fitted = Vector().fit(logits, labels)
    theta = torch.stack([fitted.state["weight"], fitted.state["bias"]]).requires_grad_()
    log_loss(logits.double() * theta[0] + theta[1], labels).mean().backward()
    assert theta.grad is not None
    assert float(theta.grad.abs().max()) < 1e-8  # float32 alone stops near 1e-7


def test_limits() -> None:
    logits, labels = batch(600, 4, bias=0.7, sharpen=1.5)
    t = float(Temperature().fit(logits, labels).state["temperature"])
    near = Structured(variance=1e-12).fit(logits, labels).state
    torch.testing.assert_close(near["weight"], torch.eye(4).double() / t, rtol=0, atol=1e-6)
    far, free = Structured(variance=1e12).fit(logits, labels), Matrix(0.0).fit(logits, labels)
    torch.testing.assert_close(far(logits).softmax(1), free(logits).softmax(1), rtol=0, atol=1e-5)  # type: ignore[union-attr]
    pulled = Matrix(1e9).fit(logits, labels).state
    off = pulled["weight"] - torch.diag(pulled["weight"].diagonal())
    assert float(off.abs().max()) < 1e-6
    assert float(pulled["bias"].abs().max()) < 1e-6
    shifted = logits + torch.randn(600, 1, generator=torch.Generator().manual_seed(0))
    one, two = Dirichlet(0.1).fit(logits, labels), Dirichlet(0.1).fit(shifted, labels)
    torch.testing.assert_close(one.state["weight"], two.state["weight"], rtol=0, atol=1e-5)  # float32 logits


def test_an_affine_truth_is_found() -> None:
    logits, _ = batch(60_000, 3)
    w, b = torch.tensor([0.5, 1.0, 1.5]), torch.tensor([0.6, -0.9, 0.3])
    labels = (logits * w + b).softmax(1).multinomial(1, generator=torch.Generator().manual_seed(2))[:, 0]
    state = Vector().fit(logits, labels).state
    # 60,000 rows know weights to about 0.015 and intercepts to 0.03; four of that
    torch.testing.assert_close(state["weight"], w.double(), rtol=0, atol=0.06)
    torch.testing.assert_close(state["bias"], b.double(), rtol=0, atol=0.12)


@pytest.mark.parametrize("calibrator", [Matrix(), Dirichlet(), Structured()], ids=str)
@pytest.mark.parametrize(("bias", "sharpen"), [(0.0, 1.0), (0.6, 1.6)])
def test_defaults_do_not_destroy_a_model_of_many_classes(
    calibrator: Any, bias: float, sharpen: float
) -> None:
    """100 classes, 5,000 rows: where a free matrix loses, no default is worse than nothing by two standard errors."""
    fit, held = batch(5000, 100, 1, bias, sharpen), batch(10_000, 100, 2, bias, sharpen)
    out = calibrator.fit(*fit)(held[0])
    for worse in (
        log_loss(out, held[1]) - log_loss(held[0], held[1]),
        (out.argmax(1) != held[1]).double() - (held[0].argmax(1) != held[1]).double(),
    ):
        assert float(worse.mean()) <= 2 * float(worse.std()) / math.sqrt(len(worse))
    if bias:
        scaled = Temperature().fit(*fit)(held[0])
        assert float((log_loss(out, held[1]) - log_loss(scaled, held[1])).mean()) < -0.1


def test_a_free_matrix_destroys_it() -> None:
    fit, held = batch(1000, 30, 1), batch(5000, 30, 2)
    free = Matrix(0.0).fit(*fit)(held[0])
    assert float((log_loss(free, held[1]) - log_loss(held[0], held[1])).mean()) > 0.5


@pytest.mark.parametrize("calibrator", [Vector(), Matrix(0.1), Dirichlet(0.1), Structured(0.1)], ids=str)
def test_masks_and_unseen_classes(calibrator: Any) -> None:
    logits, labels = batch(500, 5, bias=0.5)
    logits, labels = logits[labels < 4], labels[labels < 4]
    logits[::3, 4] = -torch.inf
    fitted = calibrator.fit(logits, labels)
    out = fitted(logits)
    assert torch.equal(out == -torch.inf, logits == -torch.inf)
    t = float(Temperature().fit(logits, labels).state["temperature"])
    row = fitted.state["weight"][4]
    assert float(row[4] if row.ndim else row) == pytest.approx(
        1 / t, rel=1e-5
    )  # as temperature scaling left it
    kept = out[1::3, 4].softmax(0).mean() / logits[1::3, 4].softmax(0).mean()
    assert 0.2 < float(kept) < 5
    assert float(log_loss(out, labels).mean()) <= float(log_loss(logits, labels).mean())


def test_all_right_says_so() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 3.0, 1.0]])
    for calibrator in (Vector(), Matrix(), Dirichlet(), Structured()):
        with pytest.warns(CalibrationWarning, match="every row is right"):
            fitted = calibrator.fit(logits, torch.tensor([0, 1]))
        assert bool(fitted(logits).isfinite().all())  # type: ignore[union-attr]


def test_too_few_rows_leave_temperature_scaling() -> None:
    logits, labels = batch(5, 3, seed=4, bias=2.0)
    for calibrator in (Matrix(), Dirichlet(), Structured()):
        state = calibrator.fit(logits, labels).state
        t = float(Temperature().fit(logits, labels).state["temperature"])
        torch.testing.assert_close(state["weight"], torch.eye(3).double() / t)
    assert torch.equal(Identity().fit(logits, labels)(logits), logits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Matrix(strength=-1.0), "at least 0"),
        (lambda: Dirichlet(intercept=1.0), "needs a strength"),
        (lambda: Matrix(penalty="zero"), "needs a strength"),
        (lambda: Structured(variance=0.0), "positive"),
        (lambda: Structured(folds=1), "between 2 and 100"),
    ],
)
def test_settings_that_mean_nothing(make: Any, told: str) -> None:
    with pytest.raises(CalibrantError, match=told):
        make()


@pytest.mark.slow
def test_a_thousand_classes() -> None:
    logits, labels = batch(2000, 1000, bias=0.5)
    for calibrator in (Vector(), Structured(0.01)):
        before, after = log_loss(logits, labels), log_loss(calibrator.fit(logits, labels)(logits), labels)
        assert float(after.mean()) < float(before.mean()), str(calibrator)


@pytest.mark.parametrize("calibrator", [Vector(), Matrix(), Structured()], ids=str)
def test_the_order_of_rows_is_no_matter_to_the_last_bit(calibrator: Any) -> None:
    logits, labels = batch(900, 25, bias=0.7)
    order = torch.randperm(900, generator=torch.Generator().manual_seed(1))
    one, two = calibrator.fit(logits, labels), calibrator.fit(logits[order], labels[order])
    assert all(torch.equal(one.state[name], two.state[name]) for name in ("weight", "bias"))
