"""What every surrogate and batch-level penalty keeps to; a new piece is covered without an edit here."""

from dataclasses import replace
from typing import Any, get_args, get_origin

import pytest
import torch
from torch import Tensor

from calibrant.core.contracts import Loss
from calibrant.core.errors import InputError
from calibrant.core.registry import Entry, describe
from calibrant.core.spec import build, canonical
from calibrant.data import Synthetic
from calibrant.surrogates.surrogate import BatchLoss

ENTRIES = [
    entry
    for kind in ("penalties", "surrogates")
    for entry in describe(kind)
    if issubclass(entry.piece, BatchLoss)
]
PIECES: dict[str, BatchLoss] = {entry.canonical: entry.piece() for entry in ENTRIES}
CHOICES: dict[str, BatchLoss] = {}
for entry in ENTRIES:  # the other values of what is chosen from a list, and of what is on or off
    for p in entry.parameters:
        values = (
            get_args(p.type) if get_origin(p.type) is not None else (False, True) if p.type is bool else ()
        )
        for other in values:
            if other != p.default:
                CHOICES[f"{entry.name}({p.name}={other})"] = entry.piece(**{p.name: other})
ALL = PIECES | CHOICES
each_piece = pytest.mark.parametrize("piece", ALL.values(), ids=ALL)
each_default = pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=PIECES)


def batch(
    n: int = 24, classes: int = 4, dtype: torch.dtype = torch.float64, seed: int = 3
) -> tuple[Tensor, Tensor]:
    preds, _ = Synthetic(classes=classes, error=0.1).draw(n, seed=seed)
    return preds.logits.to(dtype), preds.labels


def awkward() -> dict[str, tuple[Tensor, Tensor]]:
    """Batches on which a root, a quotient or a logarithm is in danger."""
    logits, labels = batch()
    top = logits.argmax(1)
    huge = torch.where(logits > logits.median(), 1e4, -1e4)
    one_hot = torch.full((6, 4), -1e4).scatter(1, torch.arange(6)[:, None] % 4, 1e4)
    return {
        "huge logits": (huge, labels),
        "saturated and right": (one_hot, torch.arange(6) % 4),
        "saturated and wrong": (one_hot, (torch.arange(6) + 1) % 4),
        "saturated, half right": (one_hot, torch.tensor([0, 1, 2, 0, 1, 2])),
        "one saturated row": (torch.cat([logits[:5], one_hot[:1]]), labels[:6]),
        "all right": (logits, top),
        "all wrong": (logits, (top + 1) % 4),
        "one row, right": (logits[:1], top[:1]),
        "one row, wrong": (logits[:1], (top[:1] + 1) % 4),
        "one saturated row alone": (one_hot[:1], torch.tensor([0])),
        "one class": (logits, torch.zeros_like(labels)),
        "equal rows": (logits[:1].repeat(8, 1), labels[:8]),
        "uniform": (torch.zeros(8, 4), labels[:8]),
        "two classes": (logits[:, :2], labels % 2),
        "two rows": (logits[:2], labels[:2]),
    }


def gradient(
    piece: Loss, logits: Tensor, labels: Tensor, create_graph: bool = False
) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    value = piece(leaf, labels)
    (grad,) = torch.autograd.grad(value, leaf, create_graph=create_graph)
    if create_graph:
        (grad,) = torch.autograd.grad(grad.square().sum(), leaf)
    return value.detach(), grad


def test_there_are_pieces() -> None:
    names = {entry.name for entry in ENTRIES}
    assert names >= {"mdca", "mmce", "mmce_weighted", "huber", "sb_ece", "s_avuc", "avuc", "cpc"}
    assert names >= {"sece", "dece", "kde_ece"}
    assert all(issubclass(entry.piece, BatchLoss) for entry in describe("surrogates"))


@each_entry
def test_spec_round_trip(entry: Entry) -> None:
    piece = entry.piece()
    assert build(canonical(piece), entry.kind) == piece
    assert build(entry.name, entry.kind) == piece
    assert entry.paper is not None


@each_piece
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_scalar_at_least_zero_in_full_precision(piece: BatchLoss, dtype: torch.dtype) -> None:
    logits, labels = batch(dtype=dtype)
    before = logits.clone()
    value, grad = gradient(piece, logits, labels)
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    assert value.shape == ()
    assert value.dtype == wide
    assert value >= 0
    assert grad.dtype == dtype
    assert grad.device == logits.device
    assert torch.equal(logits, before)
    assert torch.equal(
        value, gradient(piece, logits.to(wide), labels)[0]
    )  # half precision is widened exactly


@each_piece
def test_autocast_changes_nothing(piece: BatchLoss) -> None:
    logits, labels = batch(dtype=torch.float32)
    plain = gradient(piece, logits, labels)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = gradient(piece, logits, labels)
    assert torch.equal(plain[0], mixed[0])
    assert torch.equal(plain[1], mixed[1])


@each_piece
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_derivatives_are_finite_everywhere(piece: BatchLoss, dtype: torch.dtype) -> None:
    for name, (logits, labels) in awkward().items():
        value, grad = gradient(piece, logits.to(dtype), labels)
        assert value.isfinite(), name
        assert value >= 0, name
        assert grad.isfinite().all(), name
        assert gradient(piece, logits.to(dtype), labels, create_graph=True)[1].isfinite().all(), name


@each_piece
def test_float32_is_close_to_float64(piece: BatchLoss) -> None:
    logits, labels = batch(64, 10)
    value, grad = gradient(piece, logits, labels)
    low, low_grad = gradient(piece, logits.float(), labels)
    assert low.item() == pytest.approx(value.item(), rel=1e-4)
    assert (low_grad - grad).norm() < 1e-3 * grad.norm()


@each_piece
def test_order_of_rows_does_not_matter(piece: BatchLoss) -> None:
    logits, labels = batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(piece(logits[order], labels[order]), piece(logits, labels))


@each_piece
def test_names_of_classes_do_not_matter(piece: BatchLoss) -> None:
    """Exact ties of the largest logit are the exception: the first class wins."""
    logits, labels = batch()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(piece(logits[:, order], order.argsort()[labels]), piece(logits, labels))


@each_piece
def test_a_constant_added_to_a_row_does_not_matter(piece: BatchLoss) -> None:
    logits, labels = batch()
    shift = torch.linspace(-50, 50, len(labels), dtype=torch.float64)[:, None]
    torch.testing.assert_close(piece(logits + shift, labels), piece(logits, labels))


@each_piece
def test_gradient_is_that_of_the_value(piece: BatchLoss) -> None:
    if getattr(piece, "detach", False):
        pytest.skip("a detached factor is no part of the derivative, by intent")
    logits, labels = batch(8)
    leaf = logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: piece(z, labels), (leaf,), eps=1e-7, atol=1e-4)
    assert torch.autograd.gradgradcheck(lambda z: piece(z, labels), (leaf,), eps=1e-7, atol=1e-3)


@each_piece
def test_nothing_waits_for_the_device(piece: BatchLoss) -> None:
    """On the meta device there are no values: what asks for one, or for a shape that depends on one, fails."""
    logits = torch.empty(12, 5, device="meta", requires_grad=True)
    value = piece(logits, torch.empty(12, dtype=torch.int64, device="meta"))
    (grad,) = torch.autograd.grad(value, logits)
    assert grad.shape == logits.shape


def changed(value: Any) -> Any:
    if isinstance(value, int):
        return value + 1
    return 1.5 * value if value else 0.01


@each_entry
def test_every_number_matters(entry: Entry) -> None:
    logits, labels = batch(60)
    piece = entry.piece()
    for p in entry.parameters:
        if p.type in (int, float):
            other = replace(piece, **{p.name: changed(p.default)})
            assert other(logits, labels) != piece(logits, labels), p.name


@pytest.mark.parametrize("piece", CHOICES.values(), ids=CHOICES)
def test_every_choice_matters(piece: BatchLoss) -> None:
    logits, labels = batch(60)
    default = gradient(type(piece)(), logits, labels)
    other = gradient(piece, logits, labels)
    assert default[0] != other[0] or not torch.allclose(
        default[1], other[1]
    )  # `detach` changes gradients only


@each_default
def test_overconfidence_is_seen(piece: BatchLoss) -> None:
    """Labels are drawn from the softmax of logits with frequent and rare classes; then the logits are scaled."""
    generator = torch.Generator().manual_seed(1)
    logits = 1.5 * torch.randn(4000, 5, generator=generator) + torch.linspace(0, 2, 5)
    labels = logits.softmax(1).multinomial(1, generator=generator)[:, 0]
    values = [piece(scale * logits, labels).item() for scale in (1.0, 1.5, 2.0, 4.0)]
    if piece.vanishes:
        assert values == sorted(values)
        assert values[0] < 0.25 * values[-1]
    else:
        assert values[0] > 0.05  # no calibration error, and its docstring says so
        assert "no calibration error" in " ".join((type(piece).__doc__ or "").split()), "say so"


@each_default
def test_soft_labels_are_refused(piece: BatchLoss) -> None:
    logits, _ = batch()
    with pytest.raises(InputError, match="class indices"):
        piece(logits, logits.softmax(1))


@each_piece
def test_functional_gradient_is_the_same(piece: BatchLoss) -> None:
    logits, labels = batch()
    functional = torch.func.grad(lambda z: piece(z, labels))(logits)
    torch.testing.assert_close(functional, gradient(piece, logits, labels)[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside its compiler
@each_piece
def test_compiled_is_the_same(piece: BatchLoss) -> None:
    logits, labels = batch()
    torch.compiler.reset()  # it compiles eight pieces and then runs the others as they stand, without a word
    whole = torch.compile(piece, fullgraph=True)
    for mine, plain in zip(gradient(whole, logits, labels), gradient(piece, logits, labels), strict=True):
        torch.testing.assert_close(mine, plain)
