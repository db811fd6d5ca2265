"""The hypergradient against slow and independent computations, and what leaks in the released code."""

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.meta import Head, Rows
from calibrant.core.objective import objective
from calibrant.losses import CE, Focal
from calibrant.meta import SGD, GammaNet, LearnedWeightDecay, descent, hypergradient

N, D, K = 10, 5, 3


def scene(seed: int = 0) -> tuple[GammaNet, dict[str, Tensor], Head, Rows, Rows]:
    g = torch.Generator().manual_seed(seed)
    x, held = torch.randn(N, D, generator=g).double(), torch.randn(N, D, generator=g).double()
    head = Head(torch.randn(K, D, generator=g).double(), torch.randn(K, generator=g).double())
    piece = GammaNet()
    phi = piece.init(x, K)
    phi["values"] = phi["values"] + 0.005 * torch.randn(D, 1, generator=g)
    y = torch.randint(K, (2, N), generator=g)
    return piece, phi, head, Rows(x, y[0]), Rows(held, y[1])


def test_one_step_row_by_row() -> None:
    r"""By hand: $dM/d\gamma_i = -\frac{lr}{N} (x_i^T dM/dV) \cdot \partial^2 \ell_i / \partial z \partial\gamma_i$."""
    piece, phi, head, train, held = scene()
    rate = 0.4
    gamma = piece.gamma(phi, train.features)
    moved_weight, moved_bias = head.weight.clone(), head.tensors[1].clone()
    slopes = []  # d l_i / dz, and its derivative by gamma
    for row in range(N):
        p = head(train.features[row]).softmax(0)
        y, g = int(train.labels[row]), float(gamma[row])
        rest = 1 - p[y]
        along = p - F.one_hot(train.labels[row], K)
        nll = -p[y].log()
        slope = rest**g + g * rest ** (g - 1) * p[y] * nll
        by_gamma = rest**g * rest.log() + rest ** (g - 1) * p[y] * nll * (1 + g * rest.log())
        moved_weight -= rate / N * torch.outer(slope * along, train.features[row])
        moved_bias -= rate / N * slope * along
        slopes.append(by_gamma * along)
    weight, bias = moved_weight.requires_grad_(), moved_bias.requires_grad_()
    goal = objective("ce + 0.5*sece")
    value = goal(held.features @ weight.T + bias, held.labels)
    by_weight, by_bias = torch.autograd.grad(value, [weight, bias])
    by_gammas = torch.stack(
        [-rate / N * slopes[row] @ (by_weight @ train.features[row] + by_bias) for row in range(N)]
    )
    leaves = {name: each.clone().requires_grad_() for name, each in phi.items()}
    want = torch.autograd.grad(piece.gamma(leaves, train.features), list(leaves.values()), by_gammas)
    found = hypergradient(piece, phi, head, train, held, base=Focal(), objective=goal, descent=SGD(rate))
    assert found.value.item() == pytest.approx(value.item(), rel=1e-12)
    for got, expected in zip(found.phi.values(), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.3),
        lambda p: torch.optim.SGD(p, 0.3, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.3, momentum=0.9, weight_decay=0.01, nesterov=True),
        lambda p: torch.optim.AdamW(p, 0.02, weight_decay=0.1, betas=(0.8, 0.99), eps=1e-6),
    ],
    ids=["sgd", "momentum", "nesterov", "adamw"],
)
@pytest.mark.parametrize("started", [False, True])
def test_the_lookahead_is_what_the_optimiser_would_do(steps: int, make: Any, started: bool) -> None:
    """The head after the lookahead of "optimizer" is the head after real steps of torch's optimiser."""
    _, phi, head, train, held = scene()
    layer = nn.Linear(D, K).double()
    with torch.no_grad():
        layer.weight.copy_(head.weight), layer.bias.copy_(head.tensors[1])
    optimizer = make(layer.parameters())
    if started:
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(layer(train.features), train.labels).backward()
            optimizer.step()
    piece = GammaNet(lookahead="optimizer", steps=steps)
    given = {"base": Focal(), "objective": CE(), "descent": descent(piece, optimizer, layer)}
    batches = (train, held) if steps > 1 else train  # several steps take the batches in turn
    found = hypergradient(piece, phi, Head.of(layer), batches, held, **given)
    for number in range(steps):
        rows = (train, held)[number % 2] if steps > 1 else train
        optimizer.zero_grad()
        piece.loss(phi, rows.features, layer(rows.features), rows.labels, base=Focal()).backward()
        optimizer.step()
    want = F.cross_entropy(layer(held.features), held.labels)
    assert found.value.item() == pytest.approx(want.item(), rel=1e-10)


def test_plain_lookahead_uses_the_rate_of_the_moment() -> None:
    layer = nn.Linear(D, K)
    optimizer = torch.optim.SGD(layer.parameters(), 0.3, momentum=0.9, weight_decay=0.1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.07)
    rule = descent(GammaNet(), optimizer, layer)
    assert isinstance(rule, SGD)
    assert (float(rule.rate), rule.momentum, rule.weight_decay) == (pytest.approx(0.07), 0, 0)


def test_optimisers_that_cannot_be_followed_get_a_sentence() -> None:
    layer = nn.Linear(D, K)
    ahead = GammaNet(lookahead="optimizer")
    for optimizer in (
        torch.optim.Adam(layer.parameters()),
        torch.optim.AdamW(layer.parameters(), amsgrad=True),
        torch.optim.SGD(layer.parameters(), 0.1, momentum=0.5, dampening=0.5),
    ):
        with pytest.raises(CalibrantError, match="follows SGD and AdamW, not"):
            descent(ahead, optimizer, layer)
        assert isinstance(descent(GammaNet(), optimizer, layer), SGD)
    apart = torch.optim.SGD([{"params": [layer.weight]}, {"params": [layer.bias], "lr": 0.2}], 0.1)
    with pytest.raises(CalibrantError, match="no group with both weight and bias"):
        descent(ahead, apart, layer)


def test_features_of_another_width_get_a_sentence() -> None:
    piece, phi, head, train, held = scene()
    with pytest.raises(InputError, match=r"the head reads features \[N, 5\], not \[10, 4\]"):
        hypergradient(
            piece, phi, head, train, Rows(held.features[:, :4], held.labels),
            base=Focal(), objective=CE(), descent=SGD(0.1),
        )  # fmt: skip


def network() -> tuple[nn.Sequential, nn.Linear, Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(7)
    torch.manual_seed(0)
    body, layer = nn.Sequential(nn.Linear(4, D), nn.Tanh()).double(), nn.Linear(D, K).double()
    x, held = torch.randn(N, 4, generator=g).double(), torch.randn(N, 4, generator=g).double()
    return body, layer, x, held, torch.arange(N) % K, (torch.arange(N) + 1) % K


def test_the_leak_is_what_the_released_code_adds() -> None:
    """There the meta-loss is a plain backward pass over network and phi, and nothing clears the gradients after it."""
    body, layer, x, held, y, y_held = network()
    twin_body, twin_layer = copy.deepcopy(body), copy.deepcopy(layer)
    piece = LearnedWeightDecay(start=0.01)
    phi = piece.init(torch.zeros(1, D).double(), K)
    parameters = [*body.parameters(), *layer.parameters()]
    features = body(x)
    found = hypergradient(
        piece,
        phi,
        Head.of(layer),
        Rows(features, y),
        Rows(body(held), y_held),
        base=CE(),
        objective=objective("ce + 0.5*dece"),
        descent=SGD(0.3),
        leak=parameters,
    )
    assert all(p.grad is None for p in parameters)
    F.cross_entropy(layer(features), y).backward()  # the graph of the training batch can still be used
    leaves = {name: value.clone().requires_grad_() for name, value in phi.items()}
    seen = twin_body(x)
    loss = F.cross_entropy(twin_layer(seen), y)
    loss = (
        loss + (leaves["weight"] * twin_layer.weight**2).sum() + (leaves["bias"] * twin_layer.bias**2).sum()
    )
    grads = torch.autograd.grad(loss, list(twin_layer.parameters()), create_graph=True)
    fast = [p - 0.3 * g for p, g in zip(twin_layer.parameters(), grads, strict=True)]
    objective("ce + 0.5*dece")(F.linear(twin_body(held), *fast), y_held).backward()
    for got, p in zip(found.leak, [*twin_body.parameters(), *twin_layer.parameters()], strict=True):
        assert p.grad is not None
        assert p.grad.abs().sum() > 0
        torch.testing.assert_close(got, p.grad, rtol=1e-10, atol=1e-13)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(found.phi[name], leaf.grad, rtol=1e-10, atol=1e-14)


def test_without_the_leak_the_graph_of_the_network_is_not_entered() -> None:
    body, layer, x, held, y, y_held = network()
    entered = []
    features, seen = body(x), body(held)
    features.register_hook(entered.append), seen.register_hook(entered.append)
    piece = GammaNet()
    given = {"base": Focal(), "objective": CE(), "descent": SGD(0.3)}
    phi = piece.init(features, K)
    first = hypergradient(piece, phi, Head.of(layer), Rows(features, y), Rows(seen, y_held), **given)
    assert entered == []
    with torch.no_grad():  # as in a step whose held-out pass keeps no graph
        second = hypergradient(
            piece, phi, Head.of(layer), Rows(features.detach(), y), Rows(seen.detach(), y_held), **given
        )
    assert all(torch.equal(first.phi[name], second.phi[name]) for name in phi)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_traced_meta_step_is_the_same(compiled: bool) -> None:
    """One flat graph without autograd inside, which is what `torch.compile` fuses."""
    from torch.fx.experimental.proxy_tensor import make_fx

    piece, phi, head, train, held = scene()
    goal = objective("ce + 0.5*sece")

    def gradient(values: dict[str, Tensor], weight: Tensor, bias: Tensor, rate: Tensor) -> dict[str, Tensor]:
        given = {"base": Focal(), "objective": goal, "descent": SGD(rate)}
        return hypergradient(piece, values, Head(weight, bias), train, held, **given).phi

    arguments = (phi, *head.tensors, torch.tensor(0.2, dtype=torch.float64))
    traced = make_fx(gradient)(*arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own
        run = torch.compile(traced) if compiled else traced
        for factor in (1.0, 1.5):
            changed = ({key: factor * value for key, value in phi.items()}, *arguments[1:])
            want = gradient(*changed)
            for name, value in run(*changed).items():
                torch.testing.assert_close(value, want[name], rtol=1e-9, atol=1e-12)
