"""Gamma-Net: golden numbers, its size, where it starts, and what it keeps of the base's focal loss."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.errors import CalibrantError
from calibrant.core.meta import Head, Rows
from calibrant.core.objective import objective
from calibrant.core.samples import InputShape
from calibrant.losses import Focal
from calibrant.meta import SGD, GammaNet, hypergradient
from calibrant.models import ResNet18

GOLDEN = Path(__file__).parents[1] / "golden"
FILE = json.loads((GOLDEN / "gammanet.json").read_text(encoding="utf-8"))
RECORDS = FILE["records"]


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    with np.load(GOLDEN / "inputs" / f"{FILE['input']}.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def phi_of(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"attention": arrays["A"], "values": arrays["W"]}


def test_forward_is_that_of_the_definition(arrays: dict[str, Tensor]) -> None:
    gamma = GammaNet(temperature=RECORDS[0]["settings"]["tau"]).gamma(phi_of(arrays), arrays["X_train"])
    np.testing.assert_allclose(gamma, RECORDS[0]["gamma"], rtol=0, atol=1e-9)  # asked for; reached: 1e-15


@pytest.mark.parametrize("record", RECORDS[1:], ids=lambda record: record["id"])
def test_meta_gradient_is_that_of_the_definition(arrays: dict[str, Tensor], record: dict[str, Any]) -> None:
    s = record["settings"]
    accuracy = {"hard": "hard", "soft": "all-pairs"}[s["acc"]]
    sece = f'sece(bandwidth={s["h"]}, accuracy="{accuracy}", leave_one_out={s["loo"]}, t_acc={s["ta"]})'
    found = hypergradient(
        GammaNet(temperature=s["tau"]),
        phi_of(arrays),
        Head(arrays["V"].T, arrays["c"]),
        Rows(arrays["X_train"], arrays["y_train"]),
        Rows(arrays["X_meta"], arrays["y_meta"]),
        base=Focal(),
        objective=objective(f"ce + {s['lam']}*{sece}"),
        descent=SGD(s["lr"]),
    )
    a, w = found.phi["attention"], found.phi["values"]
    pairs = [
        (found.value, record["value"]),
        (a.norm(), record["grad_a_l2"]),
        (w.norm(), record["grad_w_l2"]),
        (a[0], record["grad_a_row0"]),
        (a[-1, :5], record["grad_a_last_row"]),
        (w[:8, 0], record["grad_w_first"]),
    ]
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)  # 1e-6 asked for; reached: 3e-14
    logits = arrays["X_train"] @ arrays["V"] + arrays["c"]
    loss = GammaNet().loss(phi_of(arrays), arrays["X_train"], logits, arrays["y_train"], base=Focal())
    assert loss.item() == pytest.approx(record["train_focal"], abs=1e-12)


def test_size_is_that_of_the_paper() -> None:
    """Document 000: 0.46 % of ResNet-18; d x K + d numbers and nothing else, at K = 100."""
    phi = GammaNet().init(torch.zeros(2, 512), 100)
    own = sum(value.numel() for value in phi.values())
    network = ResNet18().make(InputShape("image", (3, 32, 32)), 100)
    assert own == 512 * 100 + 512 == 51_712
    assert own / sum(p.numel() for p in network.parameters()) == pytest.approx(0.0046, abs=5e-5)


@pytest.mark.parametrize("activation", ["abs", "softplus", "sigmoid", "relu", "minmax"])
@pytest.mark.parametrize("bound", [None, 3.0])
@pytest.mark.parametrize("normalise", ["none", "mean"])
@pytest.mark.parametrize("size", [(64, 9, 4), (32, 3, 7)], ids=["d > K", "d < K"])
def test_the_first_batch_has_the_gamma_of_the_start(
    activation: Any, bound: float | None, normalise: Any, size: tuple[int, int, int]
) -> None:
    n, d, k = size
    features = torch.randn(n, d, generator=torch.Generator().manual_seed(3)).relu()
    piece = GammaNet(activation=activation, bound=bound, normalise=normalise, start=1.3)
    phi = piece.init(features, k)
    assert set(phi) == {"attention", "values"} | (
        {"scale"} if normalise == "mean" or activation == "minmax" else set()
    )
    gamma = piece.gamma(phi, features)
    assert gamma.mean().item() == pytest.approx(1.3, rel=1e-5)  # float32
    if activation == "minmax":
        assert gamma.min() == 0
        assert gamma.std() > 0.1
    else:  # every row, of this batch and of any other
        other = piece.gamma(phi, 5 * torch.randn(8, d))
        torch.testing.assert_close(other, torch.full_like(other, 1.3), rtol=1e-4, atol=0)


def test_activations_and_bound_are_what_they_say() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 5, generator=g, dtype=torch.float64)
    phi = {
        name: torch.randn(5, size, generator=g, dtype=torch.float64)
        for name, size in (("attention", 3), ("values", 1))
    }
    u = (x @ phi["attention"]).softmax(1) @ phi["attention"].T @ phi["values"] / 0.7
    u = u[:, 0]
    want = {
        "abs": u.abs(),
        "relu": u.clamp_min(0),
        "softplus": (1 + u.exp()).log(),
        "sigmoid": 2 / (1 + (-u).exp()),
        "minmax": (u - u.min()) / (u.max() - u.min()),
    }
    for activation, expected in want.items():
        piece = GammaNet(0.7, activation=activation)  # type: ignore[arg-type]
        found = piece.gamma({**phi, "scale": torch.ones(())}, x)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert found.min() >= 0
    bounded = GammaNet(0.7, bound=1.5).gamma(phi, x)
    torch.testing.assert_close(bounded, 1.5 * (u.abs() / 1.5).tanh(), rtol=1e-12, atol=0)
    assert GammaNet(1e-6, bound=1.5).gamma(phi, x).max() <= 1.5
    scaled = GammaNet(0.7, normalise="mean").gamma({**phi, "scale": torch.tensor(2.5)}, x)
    assert scaled.mean().item() == pytest.approx(2.5)
    torch.testing.assert_close(scaled / scaled.mean(), u.abs() / u.abs().mean(), rtol=1e-9, atol=0)


def test_inputs_are_normalised_row_by_row() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(6, 8, generator=g, dtype=torch.float64)
    factor = torch.tensor([1.0, 2, 3, 10, 100, 0.5], dtype=torch.float64)[:, None]
    close = {"rtol": 0, "atol": 1e-4}  # of numbers near 1; there is a 1e-6 or 1e-5 under the root
    rms, standard = GammaNet(inputs="rms"), GammaNet(inputs="standard")
    phi = rms.init(x, 4)
    phi["values"] = phi["values"] + 0.01 * torch.randn(8, 1, generator=g)
    torch.testing.assert_close(rms.gamma(phi, x * factor), rms.gamma(phi, x), **close)
    torch.testing.assert_close(standard.gamma(phi, x * factor + 7), standard.gamma(phi, x), **close)
    raw = GammaNet()
    assert not torch.allclose(raw.gamma(phi, x * factor), raw.gamma(phi, x), rtol=1e-2)
    unit = x / x.square().mean(1, keepdim=True).sqrt()
    torch.testing.assert_close(rms.gamma(phi, x), raw.gamma(phi, unit), **close)


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("weight", [None, (0.5, 1.0, 2.0, 3.0)])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_conventions_of_the_focal_loss_stay(
    detach: bool, weight: tuple[float, ...] | None, ignored: int
) -> None:
    """At the start gamma is one number: loss and gradient are those of `focal`, with all its settings."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(12, 5, generator=g, dtype=torch.float64)
    logits = (3 * torch.randn(12, 4, generator=g, dtype=torch.float64)).requires_grad_()
    labels = torch.arange(12) % 4
    labels[3] = ignored
    piece = GammaNet(start=1.7)
    base = Focal(detach=detach, weight=weight, ignore_index=ignored)
    plain = Focal(1.7, detach=detach, weight=weight, ignore_index=ignored)
    found = piece.loss(piece.init(x, 4), x, logits, labels, base=base)
    want = plain(logits, labels)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=0)
    for one, two in zip(torch.autograd.grad(found, logits), torch.autograd.grad(want, logits), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-14)
    if ignored < 0:
        soft = torch.rand(12, 4, generator=g, dtype=torch.float64).softmax(1)
        given = piece.loss(piece.init(x, 4), x, logits, soft, base=base)
        torch.testing.assert_close(given, plain(logits, soft), rtol=1e-12, atol=0)
        sharp = F.one_hot(labels % 4, 4).double()
        one_hot = GammaNet(weigh="relative").loss(piece.init(x, 4), x, logits, sharp, base=Focal())
        index = GammaNet(weigh="relative").loss(piece.init(x, 4), x, logits, labels % 4, base=Focal())
        torch.testing.assert_close(one_hot, index, rtol=1e-12, atol=0)


def test_relative_weights_have_mean_one() -> None:
    g = torch.Generator().manual_seed(4)
    x, logits = torch.randn(30, 5, generator=g).double(), torch.randn(30, 4, generator=g).double()
    labels = torch.arange(30) % 4
    phi = GammaNet().init(x, 4)
    phi["values"] = phi["values"] + 0.02 * torch.randn(5, 1, generator=g)
    nll = F.cross_entropy(logits, labels, reduction="none")
    factor = (1 - (-nll).exp()) ** GammaNet().gamma(phi, x)
    found = GammaNet(weigh="relative").loss(phi, x, logits, labels, base=Focal())
    torch.testing.assert_close(found, (factor / factor.mean() * nll).mean(), rtol=1e-12, atol=0)
    sure = torch.full((30, 4), -20.0).scatter(1, labels[:, None], 20.0)
    for piece in (GammaNet(weigh="relative"), GammaNet()):
        leaf = sure.clone().requires_grad_()
        loss = piece.loss(piece.init(x.float(), 4), x.float(), leaf, labels, base=Focal())
        loss.backward()
        assert loss.isfinite()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


def test_the_prior_is_added_to_the_meta_objective(arrays: dict[str, Tensor]) -> None:
    phi, x = phi_of(arrays), arrays["X_train"]
    away = GammaNet().gamma(phi, x) - 1
    rows, mean = GammaNet(prior=0.2).cost(phi, x), GammaNet(prior=0.2, prior_of="mean").cost(phi, x)
    assert GammaNet().cost(phi, x) is None
    assert rows is not None
    assert mean is not None
    assert rows.item() == pytest.approx(0.2 * away.square().mean().item())
    assert mean.item() == pytest.approx(0.2 * away.mean().item() ** 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": 0.0}, "temperature must be"),
        ({"heads": 0}, "heads must be"),
        ({"start": 0.0}, "start must be"),
        ({"bound": 1.0}, "bound must be finite and above the start of 1, not 1"),
        ({"bound": math.inf}, "bound must be"),
        ({"prior": -1.0}, "prior must be"),
    ],
)
def test_wrong_parameters_get_a_sentence(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(CalibrantError, match=said):
        GammaNet(**wrong)
