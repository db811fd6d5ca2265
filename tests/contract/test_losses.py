"""What every loss, penalty and surrogate keeps: the tests run over the registry, so a new piece is covered unasked."""

import typing
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from calibrant.core.errors import CalibrantError
from calibrant.core.objective import KINDS, Adaptive, Objective, PerSample, objective
from calibrant.core.registry import Entry, Parameter, describe
from calibrant.core.spec import canonical

ENTRIES = [entry for kind in KINDS for entry in describe(kind)]
IDS = [f"{entry.kind}-{entry.name}" for entry in ENTRIES]
every = pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

MOVED_BY_A_CONSTANT = {
    "lp_norm": "it is the length of the logits themselves",
    "logit_norm": "it divides by the length of the logits",
}
"""Pieces that a constant added to all logits changes, though it changes no probability; with the reason."""


def batch(
    n: int = 24, k: int = 5, *, seed: int = 0, spread: float = 2.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Logits and labels of a model that is right more often than not."""
    g = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(n, k, generator=g, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits / spread).probs.multinomial(1, generator=g)[:, 0]
    return logits.to(dtype), labels


def value_and_gradient(piece: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    z = logits.detach().clone().requires_grad_()
    value = piece(z, labels)
    value.backward()
    assert z.grad is not None
    return value.detach(), z.grad


def test_the_registry_is_not_empty() -> None:
    found = {(entry.kind, entry.name) for entry in ENTRIES}
    wanted = "ce label_smoothing focal inverse_focal flsd53 dual_focal adafocal brier logit_norm mbls"
    assert found >= {("losses", name) for name in wanted.split()}
    assert found >= {("penalties", "lp_norm"), ("penalties", "entropy")}


def extreme(right: bool, n: int, k: int, one_class: bool) -> tuple[Tensor, Tensor]:
    labels = torch.zeros(n, dtype=torch.int64) if one_class else torch.arange(n) % k
    top = labels if right else (labels + 1) % k
    logits = torch.full((n, k), -1e4, dtype=torch.float64)
    return logits.scatter_(1, top[:, None], 1e4), labels


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("classes", [2, 7])
def test_finite_at_the_extremes(entry: Entry, dtype: torch.dtype, classes: int) -> None:
    g = torch.Generator().manual_seed(1)
    mixed = (1e4 * (2 * torch.rand(6, classes, generator=g) - 1), torch.arange(6) % classes)
    still = (torch.zeros(6, classes), torch.arange(6) % classes)
    cases = {"mixed": mixed, "all logits 0": still, "equal and large": (still[0] + 1e4, still[1])}
    for right in (True, False):
        for n in (1, 6):
            for one_class in (True, False):
                cases[f"{right=} {n=} {one_class=}"] = extreme(right, n, classes, one_class)
    ordinary, labels = batch(6, classes)
    cases["one sample"] = (ordinary[:1], labels[:1])
    cases["one class"] = (ordinary, torch.zeros_like(labels))
    cases["all right"] = (ordinary, ordinary.argmax(1))
    cases["all wrong"] = (ordinary, ordinary.argmin(1))
    bad = []
    for name, (logits, labels) in cases.items():
        value, gradient = value_and_gradient(entry.piece(), logits.to(dtype), labels)
        if not (value.isfinite() and gradient.isfinite().all()):
            bad.append(f"{name}: value {value}, gradient finite {bool(gradient.isfinite().all())}")
    assert bad == []


@every
def test_gradients_are_derivatives(entry: Entry) -> None:
    logits, labels = batch(5, 4, seed=3)
    piece = entry.piece()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: piece(z, labels), logits, eps=1e-6, atol=1e-6, rtol=1e-4)
    assert torch.autograd.gradgradcheck(lambda z: piece(z, labels), logits, eps=1e-6, atol=1e-5, rtol=1e-3)


@every
def test_second_gradients_are_finite_where_a_row_is_certain(entry: Entry) -> None:
    logits, labels = extreme(True, 4, 3, False)
    logits[2:] = batch(2, 3)[0]
    z = logits.float().requires_grad_()
    (first,) = torch.autograd.grad(entry.piece()(z, labels), z, create_graph=True)
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.square().sum(), z, allow_unused=True)
        assert second is None or second.isfinite().all()
    assert first.isfinite().all()


@every
def test_the_order_of_rows_means_nothing(entry: Entry) -> None:
    logits, labels = batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(2))
    value, gradient = value_and_gradient(entry.piece(), logits, labels)
    moved, moved_gradient = value_and_gradient(entry.piece(), logits[order], labels[order])
    torch.testing.assert_close(moved, value, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(moved_gradient, gradient[order], rtol=1e-9, atol=1e-12)


@every
def test_the_names_of_classes_mean_nothing(entry: Entry) -> None:
    logits, labels = batch()
    renamed = torch.tensor([3, 0, 4, 1, 2])  # class k becomes renamed[k]
    value, gradient = value_and_gradient(entry.piece(), logits, labels)
    moved = torch.empty_like(logits)
    moved[:, renamed] = logits
    after, after_gradient = value_and_gradient(entry.piece(), moved, renamed[labels])
    torch.testing.assert_close(after, value, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(after_gradient[:, renamed], gradient, rtol=1e-9, atol=1e-12)


@every
def test_a_constant_added_to_the_logits_means_nothing(entry: Entry) -> None:
    logits, labels = batch()
    value = entry.piece()(logits, labels)
    moved = entry.piece()(logits + 7.0, labels)
    same = torch.allclose(moved, value, rtol=1e-10, atol=1e-12)
    assert same != (entry.name in MOVED_BY_A_CONSTANT), MOVED_BY_A_CONSTANT.get(entry.name, "it should not")


@every
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtype_and_device_are_kept(entry: Entry, dtype: torch.dtype, device: str) -> None:
    logits, labels = (values.to(device) for values in batch(dtype=dtype))
    value, gradient = value_and_gradient(entry.piece(), logits, labels)
    full = dtype if dtype == torch.float64 else torch.float32
    assert value.shape == ()
    assert (value.dtype, gradient.dtype) == (full, dtype)  # half precisions are computed in float32
    assert value.device.type == gradient.device.type == device
    exact = entry.piece()(logits.to(full), labels)
    torch.testing.assert_close(value, exact, rtol=1e-6, atol=1e-7)


@every
@pytest.mark.parametrize("device", DEVICES)
def test_autocast_computes_in_float32(entry: Entry, device: str) -> None:
    logits, labels = (values.to(device) for values in batch(dtype=torch.float32))
    value, gradient = value_and_gradient(entry.piece(), logits, labels)
    z = logits.clone().requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        cast = entry.piece()(z, labels)
        half = entry.piece()(logits.bfloat16(), labels)
    (cast_gradient,) = torch.autograd.grad(cast, z)  # as torch wants it, outside
    assert cast.dtype == half.dtype == torch.float32
    torch.testing.assert_close(cast.detach(), value, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(cast_gradient, gradient, rtol=1e-4, atol=1e-7)


@every
def test_a_step_reads_no_value_on_the_host(entry: Entry) -> None:
    """Fake tensors have shapes and no values: what would synchronise, or have a shape that depends on data, fails."""
    with FakeTensorMode():
        logits = torch.empty(16, 10, requires_grad=True)
        value = entry.piece()(logits, torch.zeros(16, dtype=torch.int64))
        value.backward()
        assert value.shape == ()
        assert logits.grad is not None


def test_reading_a_value_would_be_seen() -> None:
    with FakeTensorMode():
        values = torch.rand(4)
        for read in (lambda: values.sum().item(), lambda: values[values > 0.5], lambda: bool(values[0] > 0)):
            with pytest.raises((RuntimeError, NotImplementedError)):
                read()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@every
def test_a_step_can_be_captured(entry: Entry) -> None:
    logits, labels = (values.cuda() for values in batch(dtype=torch.float32))
    piece = entry.piece()
    value, gradient = value_and_gradient(piece, logits, labels)
    z = logits.clone().requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.autograd.grad(piece(z, labels), z)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = piece(z, labels)
        (captured_gradient,) = torch.autograd.grad(captured, z)
    graph.replay()
    torch.testing.assert_close(captured.detach(), value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(captured_gradient, gradient, rtol=1e-4, atol=1e-6)


def others(parameter: Parameter, value: Any) -> list[Any]:
    """Other values that a hyper-parameter may take."""
    hint = parameter.type
    if parameter.name == "weight":
        return [(1.0, 2.0, 3.0, 4.0, 5.0)]
    if parameter.name == "ignore_index":
        return [0]
    if isinstance(value, bool):
        return [not value]
    if typing.get_origin(hint) is typing.Literal:
        return [other for other in typing.get_args(hint) if other != value]
    if isinstance(value, int):
        return [value + 3, value + 1, max(1, value - 1)]
    if isinstance(value, float):
        return [1.5 * value + 0.25, 0.5 * value, value + 1, value - 0.5, value + 1e-3]
    raise AssertionError(f"give {parameter.name} a value to try")


def result(piece: Any) -> Tensor:
    """Value and gradient as one vector on generic data; of an adaptive loss before and after some updates."""
    logits, labels = batch(64, 5, spread=5.0)
    value, gradient = value_and_gradient(piece, logits, labels)
    parts = [value[None], gradient.flatten()]
    if isinstance(piece, Adaptive):
        state = piece.init()
        val_logits, _ = batch(120, 5, seed=9, spread=3.0)
        unsure = val_logits.softmax(1).amax(1) < 0.7
        val_labels = torch.where(unsure, val_logits.argmin(1), val_logits.argmax(1))
        for _ in range(40):  # unsure rows are wrong, sure ones are right: both limits are reached
            state = piece.update(state, val_logits, val_labels)
            parts.append(piece.loss(state, logits, labels)[None])
    return torch.cat(parts)


@every
def test_every_parameter_changes_the_result(entry: Entry) -> None:
    piece: Any = entry.piece()
    before = result(piece)
    silent = []
    for parameter in entry.parameters:
        changed = False
        for other in others(parameter, getattr(piece, parameter.name)):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    changed = not torch.allclose(
                        result(replace(piece, **{parameter.name: other})), before, rtol=1e-7
                    )
            except CalibrantError:
                continue
            if changed:
                break
        if not changed:
            silent.append(parameter.name)
    assert silent == []


@every
def test_spec_round_trip(entry: Entry) -> None:
    piece = entry.piece()
    text = canonical(piece)
    built = objective(text)
    assert str(built) == text == entry.canonical
    assert built.terms == ((1.0, piece),)
    assert built == objective(entry.name) == Objective(((1, piece),))
    assert hash(built) == hash(objective(entry.name))
    assert str(objective(f"ce - 0.25*{text}")) == f"ce - 0.25*{text}"


@every
def test_inputs_are_left_alone(entry: Entry) -> None:
    logits, labels = batch(dtype=torch.float32)
    before = logits.clone(), labels.clone()
    z = logits.requires_grad_()
    versions = z._version, labels._version
    entry.piece()(z, labels).backward()
    assert (z._version, labels._version) == versions
    assert torch.equal(z.detach(), before[0])
    assert torch.equal(labels, before[1])


@every
def test_labels_of_other_integer_types_are_refused_or_give_the_same(entry: Entry) -> None:
    logits, labels = batch()
    try:
        value = entry.piece()(logits, labels.int())
    except (CalibrantError, RuntimeError, IndexError):
        value = entry.piece()(logits, labels)
    torch.testing.assert_close(value, entry.piece()(logits, labels))


@every
@pytest.mark.parametrize(
    ("shape", "labels"),
    [((4, 3), (5,)), ((4, 3), (4, 1)), ((3,), (3,)), ((2, 3, 4), (2, 4))],
    ids=["lengths", "a column of labels", "one row", "more dimensions"],
)
def test_wrong_shapes_get_a_sentence(entry: Entry, shape: tuple[int, ...], labels: tuple[int, ...]) -> None:
    with pytest.raises(CalibrantError, match="must be"):
        entry.piece()(torch.zeros(shape), torch.zeros(labels, dtype=torch.int64))


@every
def test_it_says_whether_it_takes_soft_targets(entry: Entry) -> None:
    logits, labels = batch()
    piece, soft = entry.piece(), torch.nn.functional.one_hot(labels, logits.shape[1]).double()
    says = getattr(entry.piece, "targets", "nothing")
    assert says in ("class indices, or soft targets [N, K]", "class indices", "not read")
    if says == "class indices":
        with pytest.raises(CalibrantError, match="class indices"):
            piece(logits, soft)
    else:
        torch.testing.assert_close(piece(logits, soft), piece(logits, labels), rtol=1e-12, atol=1e-14)
    if says == "not read":
        assert torch.equal(piece(logits, labels), piece(logits, (labels + 1) % 5))


@every
def test_rows_average_to_the_value(entry: Entry) -> None:
    piece: Any = entry.piece()
    logits, labels = batch()
    if isinstance(piece, PerSample):
        rows = piece.per_sample(logits, labels)
        assert rows.shape == labels.shape
        torch.testing.assert_close(rows.mean(), piece(logits, labels), rtol=1e-12, atol=1e-14)
    else:
        with pytest.raises(CalibrantError, match="one number for a batch"):
            objective(f"ce + {entry.name}").per_sample(logits, labels)


@every
def test_functional_transforms_see_through(entry: Entry) -> None:
    logits, labels = batch(6, 4)
    _, gradient = value_and_gradient(entry.piece(), logits, labels)
    functional = torch.func.grad(lambda z: entry.piece()(z, labels))(logits)
    torch.testing.assert_close(functional, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@every
def test_compiled_gives_the_same(entry: Entry) -> None:
    logits, labels = batch(dtype=torch.float32)
    value, gradient = value_and_gradient(entry.piece(), logits, labels)
    torch.compiler.reset()  # it compiles eight pieces and then runs the others as they stand, without a word
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own
        whole = torch.compile(entry.piece(), fullgraph=True)
        compiled, compiled_gradient = value_and_gradient(whole, logits, labels)
    torch.testing.assert_close(compiled, value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(compiled_gradient, gradient, rtol=1e-4, atol=1e-6)
