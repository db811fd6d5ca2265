"""What every meta-regulariser keeps: the tests run over the registry, with every choice that a piece offers."""

import typing
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from calibrant.core.errors import CalibrantError
from calibrant.core.meta import Head, MetaRegularizer, Phi, Rows
from calibrant.core.objective import Objective, objective
from calibrant.core.registry import Entry, describe
from calibrant.core.spec import build, canonical
from calibrant.losses import CE, Focal
from calibrant.meta import SGD, AdamW, Descent, descent, hypergradient, moved, remember

ENTRIES = describe("meta")
OWN = {p.name for p in describe("meta")[0].parameters} & {p.name for p in describe("meta")[-1].parameters}
"""Parameters that every piece has: how phi is learned."""

PIECES: dict[str, MetaRegularizer] = {entry.name: entry.piece() for entry in ENTRIES}
for entry in ENTRIES:
    for parameter in entry.parameters:
        if parameter.name not in OWN and typing.get_origin(parameter.type) is typing.Literal:
            for choice in typing.get_args(parameter.type):
                if choice != parameter.default:
                    more = {"prior": 0.3} if parameter.name == "prior_of" else {}
                    made = entry.piece(**{parameter.name: choice}, **more)
                    PIECES[f"{entry.name}({parameter.name}={choice})"] = made
PIECES |= {
    text: build(text, "meta")
    for text in (
        "gamma_net(bound=3)",
        "gamma_net(prior=0.3)",
        'gamma_net(bound=3, normalise="mean", weigh="relative", inputs="rms", prior=0.1, activation="softplus")',
        'gamma_net(bound=3, activation="sigmoid", heads=2)',
        "weight_decay(negative=False)",
    )
}
BASES = {"gamma_net": "focal", "label_smoothing": "ce", "weight_decay": "focal(gamma=2)"}
MORE = {
    "gamma_net": "2*focal + 0.1*lp_norm(p=2)",
    "label_smoothing": "ce - 0.1*entropy",
    "weight_decay": "brier",
}
OBJECTIVES = ["ce", "ce + 0.5*sece", "sece", "ce + 0.5*dece", "ce + 0.5*kde_ece", "brier"]
every = pytest.mark.parametrize("name", list(PIECES), ids=list(PIECES))
each = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)

N, D, K = 14, 6, 4


def base_of(piece: MetaRegularizer, more: bool = False) -> Objective:
    return objective((MORE if more else BASES)[canonical(piece).split("(")[0]])


class Scene:
    """A head, a training batch and a held-out batch in float64, and a phi that is nowhere special."""

    def __init__(self, piece: MetaRegularizer, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=g, dtype=torch.float64).to(dtype)

        self.head = Head(normal(K, D), normal(K))
        self.train = Rows(normal(N, D), torch.randint(K, (N,), generator=g))
        self.held = Rows(normal(N + 3, D), torch.randint(K, (N + 3,), generator=g))
        self.velocity = (normal(K, D), normal(K))
        phi = piece.init(self.train.features, K, seed=seed)
        spread = 0.3 * float(torch.stack([value.abs().max() for value in phi.values()]).mean()) + 1e-2
        scale = {name: 1e-3 if name == "values" else spread for name in phi}  # gamma is values over 0.01
        self.phi = piece.project(
            {
                name: v + scale[name] * normal(*v.shape).abs() * (1 if v.ndim else 0.5)
                for name, v in phi.items()
            }
        )


def value_at(piece: MetaRegularizer, scene: Scene, phi: Phi, **given: Any) -> float:
    found = hypergradient(piece, phi, scene.head, scene.train, scene.held, **given)
    return float(found.value)


def lookaheads(scene: Scene) -> dict[str, tuple[int, Descent]]:
    first, second = scene.velocity, tuple(v.square() for v in scene.velocity)
    return {
        "one step": (1, SGD(0.3)),
        "three steps": (3, SGD(torch.tensor(0.3, dtype=torch.float64))),
        "momentum": (2, SGD(0.2, 0.9, False, 0.01, scene.velocity)),
        "nesterov": (2, SGD(0.2, 0.9, True, 0.01)),
        "adamw": (2, AdamW(0.05, 0.1, first=first, second=second, taken=torch.tensor(3.0))),
    }


@every
@pytest.mark.parametrize("goal", OBJECTIVES)
def test_the_hypergradient_is_the_derivative(name: str, goal: str) -> None:
    piece = PIECES[name]
    scene, g = Scene(piece), torch.Generator().manual_seed(1)
    size = 1e-6
    for label, (steps, rule) in lookaheads(scene).items():
        looking = replace(piece, steps=steps)
        given = {"base": base_of(piece), "objective": objective(goal), "descent": rule}
        found = hypergradient(looking, scene.phi, scene.head, scene.train, scene.held, **given).phi
        along = {
            key: torch.randn(value.shape, generator=g, dtype=value.dtype) * (1e-2 if key == "values" else 1)
            for key, value in scene.phi.items()
        }
        ends = [
            value_at(looking, scene, {k: v + way * size * along[k] for k, v in scene.phi.items()}, **given)
            for way in (1, -1)
        ]
        numeric = (ends[0] - ends[1]) / (2 * size)
        exact = sum(float((found[key] * along[key]).sum()) for key in found)
        # central differences: truncation 1e-12 of the third derivative, rounding 1e-16 / 1e-6
        assert exact == pytest.approx(numeric, rel=2e-5, abs=2e-8), label


@every
def test_at_the_start_and_at_zero_the_loss_is_plain(name: str) -> None:
    piece = PIECES[name]
    scene, base = Scene(piece), base_of(piece)
    start = piece.init(scene.train.features, K)
    logits = scene.head(scene.train.features)

    def loss(phi: Phi) -> Tensor:
        return piece.loss(
            phi, *(scene.train.features, logits, scene.train.labels), base=base, head=scene.head
        )

    if (
        "minmax" not in name and "relative" not in name
    ):  # whose gammas, or whose mean factor, differ by definition
        torch.testing.assert_close(loss(start), base(logits, scene.train.labels), rtol=1e-9, atol=0)
    if not any(word in name for word in ("softplus", "sigmoid", "mean")):  # which have no zero
        zero = {key: torch.zeros_like(value) for key, value in start.items()}
        plain = objective("ce") if base == objective("focal") else base
        torch.testing.assert_close(loss(zero), plain(logits, scene.train.labels), rtol=1e-12, atol=0)


@every
def test_projection_is_feasible_and_idempotent(name: str) -> None:
    piece = PIECES[name]
    scene, g = Scene(piece), torch.Generator().manual_seed(2)
    for size in (0.0, 0.1, 10.0):
        wild = {
            key: value + size * torch.randn(value.shape, generator=g).double()
            for key, value in scene.phi.items()
        }
        once = piece.project(wild)
        twice = piece.project(once)
        assert set(once) == set(wild)
        for key in once:
            torch.testing.assert_close(twice[key], once[key], rtol=1e-12, atol=1e-15)  # sums of shares round
        logits = scene.head(scene.train.features)
        loss = piece.loss(
            once, scene.train.features, logits, scene.train.labels, base=base_of(piece), head=scene.head
        )
        assert loss.isfinite()
    inside = piece.project(scene.phi)
    for key, value in scene.phi.items():  # what is allowed stays
        torch.testing.assert_close(inside[key], value, rtol=1e-12, atol=1e-15)


@every
def test_nothing_is_written(name: str) -> None:
    piece = PIECES[name]
    scene = Scene(piece, dtype=torch.float32)
    body = nn.Sequential(nn.Linear(5, D), nn.BatchNorm1d(D), nn.ReLU())
    layer = nn.Linear(D, K)
    optimizer = torch.optim.SGD([*body.parameters(), *layer.parameters()], lr=0.1, momentum=0.9)
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
    layer(body(x)).square().mean().backward()
    optimizer.step()
    everything = [*body.parameters(), *layer.parameters(), *body.buffers()]
    before = [value.clone() for value in everything]
    grads = [p.grad.clone() for p in (*body.parameters(), *layer.parameters()) if p.grad is not None]
    moments = [v.clone() for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    kept = {key: value.clone() for key, value in scene.phi.items()}
    features = body.eval()(x)
    train = Rows(features, scene.train.labels)
    rule = descent(replace(piece, lookahead="optimizer"), optimizer, layer)
    given = {"base": base_of(piece), "objective": objective("ce + 0.5*sece"), "descent": rule}
    found = hypergradient(
        piece, scene.phi, Head.of(layer), train, Rows(features, scene.train.labels), **given
    )
    moved(piece, scene.phi, found.phi, remember(piece, scene.phi))
    assert all(torch.equal(a, b) for a, b in zip(everything, before, strict=True))
    after = [p.grad for p in (*body.parameters(), *layer.parameters())]
    assert len(grads) == len(after)
    assert all(a is not None and torch.equal(a, b) for a, b in zip(after, grads, strict=True))
    now = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    assert all(torch.equal(a, b) for a, b in zip(now, moments, strict=True))
    assert all(torch.equal(scene.phi[key], kept[key]) and scene.phi[key].grad is None for key in kept)
    assert found.leak == ()
    assert not found.value.requires_grad


@every
def test_phi_sends_no_gradient_into_the_features(name: str) -> None:
    """In the main step phi is a constant and so is what it makes of the features; only the logits lead back."""
    piece = PIECES[name]
    scene = Scene(piece)
    features = scene.train.features.clone().requires_grad_()
    layer = Head(scene.head.weight.clone().requires_grad_(), scene.head.bias)
    logits = layer(features).detach().requires_grad_()
    loss = piece.loss(scene.phi, features, logits, scene.train.labels, base=base_of(piece), head=layer)
    found = torch.autograd.grad(loss, [logits, features], allow_unused=True)
    assert found[0].abs().sum() > 0
    assert found[1] is None
    assert not any(value.requires_grad for value in scene.phi.values())


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_full(name: str, dtype: torch.dtype) -> None:
    piece = PIECES[name]
    scene = Scene(piece, dtype=torch.float32)
    half = Rows(scene.train.features.to(dtype), scene.train.labels)
    full = Rows(half.features.float(), half.labels)
    phi = piece.init(half.features, K)
    assert {value.dtype for value in phi.values()} == {torch.float32}
    given = {"base": base_of(piece), "objective": objective("ce + 0.5*sece"), "descent": SGD(0.1)}
    want = hypergradient(piece, phi, scene.head, full, scene.held, **given)
    with torch.autocast("cpu", torch.bfloat16):
        found = hypergradient(piece, phi, scene.head, half, scene.held, **given)
        loss = piece.loss(
            phi,
            half.features,
            scene.head(full.features).float(),
            half.labels,
            base=base_of(piece),
            head=scene.head,
        )
        plain = scene.head(full.features).float()
    want_loss = piece.loss(phi, full.features, plain, full.labels, base=base_of(piece), head=scene.head)
    torch.testing.assert_close(loss, want_loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.value, want.value, rtol=1e-6, atol=0)
    for key in phi:
        torch.testing.assert_close(
            found.phi[key], want.phi[key], rtol=1e-5, atol=1e-6 * float(want.phi[key].abs().max()) + 1e-12
        )


@every
def test_a_meta_step_reads_no_value_on_the_host(name: str) -> None:
    """Fake tensors have shapes and no values: what would synchronise, or have a shape that depends on data, fails."""
    piece = replace(PIECES[name], clip=1.0, anneal=True)
    phi = piece.init(Scene(piece, dtype=torch.float32).train.features, K)
    shapes = {key: value.shape for key, value in phi.items()}
    with FakeTensorMode():
        fake = {key: torch.empty(shape) for key, shape in shapes.items()}
        head = Head(torch.empty(K, D), torch.empty(K))
        rows = Rows(torch.empty(N, D), torch.zeros(N, dtype=torch.int64))
        rule = SGD(torch.empty(()), 0.9, True, 0.1)
        given = {"base": base_of(piece), "objective": objective("ce + 0.5*sece"), "descent": rule}
        found = hypergradient(piece, fake, head, rows, rows, **given)
        new, _ = moved(piece, fake, found.phi, remember(piece, fake), torch.empty(()))
        assert {key: value.shape for key, value in new.items()} == shapes


@every
@pytest.mark.parametrize("steps", [1, 2])
def test_finite_at_the_extremes(name: str, steps: int) -> None:
    """Features that are 0, equal or huge; a head of zeros or of thousands; all right or wrong; a gamma of 1,000."""
    piece, g = replace(PIECES[name], steps=steps), torch.Generator().manual_seed(0)
    normal = torch.randn(6, D, generator=g)
    bad = []
    for shown, features in {
        "0": 0 * normal,
        "equal": 0 * normal + 1,
        "huge": 1e3 * normal,
        "one": normal[:1],
    }.items():
        for size in (0.0, 1e3):
            head = Head(size * torch.randn(K, D, generator=g), size * torch.randn(K, generator=g))
            logits = head(features)
            for labels in (logits.argmax(1), logits.argmin(1)):
                phi = piece.init(features, K)
                phi = {key: value * (1e3 if key == "values" else 1) for key, value in phi.items()}
                rows, goal = Rows(features, labels), objective("ce + 0.5*sece")
                given = {"base": base_of(piece), "objective": goal, "descent": SGD(0.1, 0.9)}
                found = hypergradient(piece, phi, head, rows, rows, **given)
                new, _ = moved(piece, phi, found.phi, remember(piece, phi))
                everything = [found.value, *found.phi.values(), *new.values()]
                if not all(value.isfinite().all() for value in everything):
                    bad.append((shown, size))
    assert bad == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@every
def test_a_meta_step_can_be_captured(name: str) -> None:
    piece = replace(PIECES[name], clip=1.0)
    scene = Scene(piece, dtype=torch.float32)

    def cuda(values: Any) -> Any:
        return type(values)(*(value.cuda() for value in values))

    head, train, held = cuda(scene.head), cuda(scene.train), cuda(scene.held)
    phi = {key: value.cuda() for key, value in scene.phi.items()}
    memory, rate = remember(piece, phi), torch.tensor(0.1, device="cuda")
    given = {"base": base_of(piece), "objective": objective("ce + 0.5*sece"), "descent": SGD(rate)}

    def step() -> Phi:
        found = hypergradient(piece, phi, head, train, held, **given)
        return moved(piece, phi, found.phi, memory)[0]

    want = step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for key, value in want.items():
        torch.testing.assert_close(captured[key], value, rtol=1e-4, atol=1e-6)


@every
def test_penalties_added_to_the_base_stay(name: str) -> None:
    piece = PIECES[name]
    scene, base = Scene(piece), base_of(piece, more=True)
    logits = scene.head(scene.train.features)
    given = (scene.phi, scene.train.features, logits, scene.train.labels)
    factor, rest = base.terms[0][0], base.terms[1:]
    want = factor * piece.loss(*given, base=Objective(((1.0, base.terms[0][1]),)), head=scene.head)
    if rest:
        want = want + Objective(rest)(logits, scene.train.labels)
        torch.testing.assert_close(piece.loss(*given, base=base, head=scene.head), want, rtol=1e-12, atol=0)
    assert piece.loss(*given, base=base, head=scene.head).isfinite()


@every
def test_the_state_of_an_adaptive_term_is_used(name: str) -> None:
    piece = PIECES[name]
    scene = Scene(piece)
    base = objective(f"{base_of(piece)} + adafocal")
    logits = scene.head(scene.train.features)
    states = base.init(), tuple(torch.stack([s[0], s[1] + 2]) for s in base.init())
    values = [
        piece.loss(
            scene.phi, scene.train.features, logits, scene.train.labels, base=base, head=scene.head, state=s
        )
        for s in states
    ]
    rest = objective("adafocal")
    gap = rest.loss(states[1], logits, scene.train.labels) - rest.loss(states[0], logits, scene.train.labels)
    torch.testing.assert_close(values[1] - values[0], gap, rtol=1e-9, atol=1e-12)


@every
def test_init_repeats_and_the_report_is_plain(name: str) -> None:
    piece = PIECES[name]
    scene = Scene(piece)
    one, two = (piece.init(scene.train.features, K, seed=5) for _ in range(2))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert all(torch.equal(piece.project(one)[key], one[key]) for key in one)
    told = piece.report(scene.phi, scene.train.features)
    watched, values = piece.watched(scene.phi, scene.train.features)
    assert set(told) == {f"{watched}_{key}" for key in ("mean", "std", "q05", "q25", "q50", "q75", "q95")}
    assert told[f"{watched}_mean"] == pytest.approx(float(values.mean()))
    assert told[f"{watched}_std"] == pytest.approx(float(values.std(correction=0)) if values.ndim else 0.0)
    quantile = torch.quantile(values.flatten(), 0.25)
    assert told[f"{watched}_q25"] == pytest.approx(float(quantile))


@each
def test_spec_round_trip(entry: Entry) -> None:
    piece = entry.piece()
    assert canonical(build(canonical(piece), "meta")) == canonical(piece) == entry.canonical
    assert build(entry.name, "meta") == piece
    assert isinstance(piece, MetaRegularizer)


OTHERS: dict[str, Any] = {
    "heads": 2,
    "bound": 2.0,
    "start": 0.5,
    "optimizer": "sgd",
    "momentum": 0.5,
    "lr": 0.3,
}


def trained(piece: MetaRegularizer) -> Tensor:
    """Phi after some meta-steps, as one vector, with the loss."""
    scene = Scene(piece, seed=3)
    layer = nn.Linear(D, K).double()
    with torch.no_grad():
        layer.weight.copy_(scene.head.weight), layer.bias.copy_(scene.head.bias)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    phi = piece.init(scene.train.features, K)
    memory, head = remember(piece, phi), Head.of(layer)
    for _ in range(3):
        rule = descent(piece, optimizer, layer)
        given = {"base": base_of(piece), "objective": objective("ce + 0.5*sece"), "descent": rule}
        found = hypergradient(piece, phi, head, scene.train, scene.held, **given)
        phi, memory = moved(piece, phi, found.phi, memory, 0.5)
        optimizer.zero_grad()
        logits = layer(scene.train.features)
        loss = piece.loss(
            phi, scene.train.features, logits, scene.train.labels, base=base_of(piece), head=head
        )
        loss.backward()
        optimizer.step()
    return torch.cat([loss.detach()[None], *(value.flatten() for value in phi.values())])


@each
def test_every_parameter_changes_the_result(entry: Entry) -> None:
    plain: MetaRegularizer = entry.piece(**({"start": 0.1} if entry.name != "gamma_net" else {}))
    silent = []
    for parameter in entry.parameters:
        piece = replace(plain, prior=0.3) if parameter.name == "prior_of" else plain  # type: ignore[call-arg]
        if parameter.name in ("negative", "activation") or (parameter.name, entry.name) == (
            "bound",
            "label_smoothing",
        ):
            piece = replace(plain, lr=1.0)  # far enough to meet what the parameter is about
        value = getattr(piece, parameter.name)
        if isinstance(value, bool):
            others = [not value]
        elif typing.get_origin(parameter.type) is typing.Literal:
            others = [other for other in typing.get_args(parameter.type) if other != value]
        elif isinstance(value, int):
            others = [value + 2]
        else:
            others = [OTHERS[parameter.name]] if parameter.name in OTHERS else [1e-3 + 2 * (value or 0)]
        if parameter.name == "bound" and entry.name == "label_smoothing":
            others = [0.1]
        before = trained(piece)
        for other in others:
            after = trained(replace(piece, **{parameter.name: other}))
            if after.shape == before.shape and torch.allclose(after, before, rtol=1e-9, atol=0):
                silent.append(f"{parameter.name}={other}")
    assert silent == []


@each
@pytest.mark.parametrize(
    "wrong",
    ["lr=0", "eps=0", "clip=-1", "momentum=1", "steps=0", 'optimizer="rmsprop"', 'lookahead="far"'],
)
def test_wrong_settings_get_a_sentence(entry: Entry, wrong: str) -> None:
    with pytest.raises(CalibrantError, match=wrong.split("=")[0]):
        build(f"{entry.name}({wrong})", "meta")


def test_what_a_base_lacks_is_said() -> None:
    pieces = {name: PIECES[name] for name in BASES}
    for name, base in [("gamma_net", CE()), ("gamma_net", objective("inverse_focal + 0.1*entropy"))]:
        with pytest.raises(CalibrantError, match="no term 'focal', and gamma_net replaces"):
            pieces[name].check(base)
    for base in (Focal(), objective("label_smoothing")):
        with pytest.raises(CalibrantError, match="no term 'ce', and the meta-regulariser label_smoothing"):
            pieces["label_smoothing"].check(base)
    with pytest.raises(CalibrantError, match="more than one term 'ce'"):
        pieces["label_smoothing"].check(CE() + CE())
    for base in (Focal(), CE(), objective("brier + mmce")):
        pieces["weight_decay"].check(base)
    pieces["gamma_net"].check(Focal(3))
    pieces["label_smoothing"].check(CE() - 0.1 * Focal())
