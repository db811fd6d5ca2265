"""Soft targets, class weights, ignored rows, masked classes: what `torch.nn.functional.cross_entropy` means by them."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.objective import objective
from calibrant.core.pointwise import constants
from calibrant.core.registry import describe
from calibrant.losses import CE, Brier, DualFocal, Focal, LabelSmoothing
from calibrant.losses.target import TargetLoss

WEIGHT = (0.5, 2.0, 0.0, 1.0, 3.0)
TARGET_LOSSES = [entry.piece for entry in describe("losses") if issubclass(entry.piece, TargetLoss)]
SOFT = [piece for piece in TARGET_LOSSES if piece is not DualFocal]
names: dict[str, Any] = {"ids": lambda piece: piece.__name__}


def hard(n: int = 12, k: int = 5) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    return 3 * torch.randn(n, k, generator=g, dtype=torch.float64), torch.arange(n) % k


def soft(n: int = 12, k: int = 5) -> tuple[Tensor, Tensor]:
    logits, _ = hard(n, k)
    g = torch.Generator().manual_seed(6)
    return logits, torch.randn(n, k, generator=g, dtype=torch.float64).softmax(1)


def same(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13, equal_nan=True)
    if ours.isfinite().all():
        mine = torch.autograd.grad(ours.sum(), inputs)
        yours = torch.autograd.grad(theirs.sum(), inputs, retain_graph=True)
        torch.testing.assert_close(mine, yours, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("ignore", [-100, 3])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_cross_entropy_is_that_of_torch(
    weight: tuple[float, ...] | None, ignore: int, epsilon: float, targets: str
) -> None:
    if targets == "soft" and ignore >= 0:
        with pytest.raises(CalibrantError, match="soft labels have no class 3 to ignore"):
            CE(ignore_index=ignore)(*soft())
        return
    logits, labels = hard() if targets == "hard" else soft()
    logits.requires_grad_()
    w = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    keep: dict[str, Any] = {"weight": weight, "ignore_index": ignore}
    theirs = F.cross_entropy(logits, labels, w, ignore_index=ignore, label_smoothing=epsilon)
    rows = F.cross_entropy(logits, labels, w, ignore_index=ignore, label_smoothing=epsilon, reduction="none")
    piece = LabelSmoothing(epsilon, **keep)
    same(piece(logits, labels), theirs, logits)
    same(piece.per_sample(logits, labels), rows, logits)
    if epsilon == 0:
        same(CE(**keep)(logits, labels), theirs, logits)
        same(CE(**keep).per_sample(logits, labels), rows, logits)


def test_a_batch_of_ignored_rows_is_nan_as_in_torch() -> None:
    logits, labels = hard()
    for piece in TARGET_LOSSES:
        assert piece()(logits, torch.full_like(labels, -100)).isnan(), piece


@pytest.mark.parametrize("piece", TARGET_LOSSES, **names)
def test_an_ignored_row_is_as_if_it_were_not_there(piece: type[TargetLoss]) -> None:
    logits, labels = hard()
    logits.requires_grad_()
    gone = labels.clone()
    gone[[0, 4, 7]] = -100
    there = gone != -100
    for weight in (None, WEIGHT):
        loss = piece(weight=weight)
        value = loss(logits, gone)
        same(value, loss(logits[there], labels[there]), logits)
        assert torch.equal(loss.per_sample(logits, gone)[~there], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("piece", TARGET_LOSSES, **names)
def test_integer_weights_are_copies_of_rows(piece: type[TargetLoss]) -> None:
    """A class of weight 2 counts as if each of its rows were there twice."""
    if piece is LabelSmoothing:
        pytest.skip("torch weighs the classes that the target is spread over, too; compared with torch above")
    logits, labels = hard()
    copies = torch.tensor([1, 2, 0, 3, 1])
    many = torch.repeat_interleave(torch.arange(len(labels)), copies[labels])
    weighed = piece(weight=tuple(copies.tolist()))(logits, labels)
    torch.testing.assert_close(weighed, piece()(logits[many], labels[many]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("piece", SOFT, **names)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
def test_a_one_hot_target_is_its_label(piece: type[TargetLoss], weight: tuple[float, ...] | None) -> None:
    logits, labels = hard()
    logits.requires_grad_()
    loss = piece(weight=weight)
    one_hot = F.one_hot(labels, 5).double()
    same(loss.per_sample(logits, one_hot), loss.per_sample(logits, labels), logits)
    assert torch.equal(loss(logits, one_hot), loss.per_sample(logits, one_hot).mean())


@pytest.mark.parametrize("piece", [CE, LabelSmoothing, Focal], **names)
def test_these_are_linear_in_the_target(piece: type[TargetLoss]) -> None:
    logits, labels = hard()
    other = (labels + 2) % 5
    mixed = 0.3 * F.one_hot(labels, 5).double() + 0.7 * F.one_hot(other, 5).double()
    expected = 0.3 * piece()(logits, labels) + 0.7 * piece()(logits, other)
    torch.testing.assert_close(piece()(logits, mixed), expected, rtol=1e-12, atol=0)


def test_soft_targets_of_dual_focal_get_a_sentence() -> None:
    with pytest.raises(CalibrantError, match="dual_focal needs class indices"):
        DualFocal()(*soft())


def test_weights_must_fit() -> None:
    logits, labels = hard()
    with pytest.raises(InputError, match=r"weight has 3 entries, and the logits have 5 classes"):
        CE(weight=(1, 2, 3))(logits, labels)
    for wrong in [(1, -1), (math.inf, 1), (0, 0)]:
        with pytest.raises(CalibrantError, match="weight must be"):
            CE(weight=wrong)


def test_weights_that_fake_tensors_saw_first_are_real_afterwards() -> None:
    weight = (1.0, 2.0, 3.0, 4.0, 5.125)  # of no other test
    with FakeTensorMode():
        assert CE(weight=weight)(torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)).shape == ()
    value = CE(weight=weight)(torch.zeros(2, 5), torch.tensor([0, 4]))
    assert float(value) == pytest.approx(math.log(5), rel=1e-6)  # float32
    like = torch.zeros(1)
    assert constants(weight, like) is constants(weight, like)  # a captured step copies nothing


def test_conventions_are_written_when_they_are_not_kept() -> None:
    text = "focal(gamma=2, detach=False, weight=(1, 2.5), ignore_index=0)"
    assert str(objective("focal(ignore_index=0, weight=[1.0, 2.5], gamma=2)")) == text
    assert objective(text).terms[0][1] == Focal(2, weight=(1, 2.5), ignore_index=0)
    assert str(objective("focal(gamma=2)")) == "focal(gamma=2, detach=False)"


UNMASKED = [
    "ce",
    "focal(gamma=3)",
    "focal(gamma=0.5)",
    "inverse_focal",
    "flsd53",
    "dual_focal",
    "adafocal",
    "brier",
]


@pytest.mark.parametrize("spec", [*UNMASKED, "ce - 0.1*entropy"])
@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_masked_classes(spec: str, targets: str) -> None:
    """A -inf logit is a class that cannot be: the loss is that of the other classes, if the target is not there."""
    if spec == "dual_focal" and targets == "soft":
        pytest.skip("dual_focal takes class indices only")
    logits, labels = hard(12, 4)
    if targets == "soft":
        labels = soft(12, 4)[1]
    masked = torch.cat([logits, torch.full((12, 1), -torch.inf, dtype=torch.float64)], 1).requires_grad_()
    wide = labels if targets == "hard" else torch.cat([labels, labels.new_zeros(12, 1)], 1)
    piece = objective(spec)
    value = piece(masked, wide)
    torch.testing.assert_close(value, piece(logits, labels), rtol=1e-12, atol=1e-13)
    for create_graph in (False, True):
        (gradient,) = torch.autograd.grad(piece(masked, wide), masked, create_graph=create_graph)
        assert gradient.isfinite().all()
        assert not gradient[:, 4].any()


@pytest.mark.parametrize("spec", ["label_smoothing", "mbls", "lp_norm"])
def test_masked_classes_are_infinitely_wrong_by_definition(spec: str) -> None:
    logits, labels = hard(12, 4)
    masked = torch.cat([logits, torch.full((12, 1), -torch.inf, dtype=torch.float64)], 1)
    assert objective(spec)(masked, labels) == torch.inf


def test_brier_sums_over_classes() -> None:
    logits, labels = hard()
    p = logits.softmax(1)
    expected = sum(
        (float(p[i, k]) - float(labels[i] == k)) ** 2 for i in range(12) for k in range(5)
    ) / 12  # fmt: skip
    assert float(Brier()(logits, labels)) == pytest.approx(expected, rel=1e-12)
