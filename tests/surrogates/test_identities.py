"""What each surrogate becomes in a limit that is known, and what it shares with the metric of its name."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from calibrant import metrics
from calibrant.core.soft import BLOCK, all_pairs_accuracy, log_soft_bins, top_label
from calibrant.data import Synthetic
from calibrant.surrogates import (
    DECE,
    MDCA,
    MMCE,
    SECE,
    AvUC,
    Huber,
    KdeECE,
    SoftAvUC,
    SoftBinnedECE,
    WeightedMMCE,
)

Batch = tuple[Tensor, Tensor]


def batch(n: int = 400, classes: int = 5, error: float = 0.1, seed: int = 0) -> Batch:
    preds, _ = Synthetic(classes=classes, error=error).draw(n, seed=seed)
    return preds.logits.double(), preds.labels


def metric(piece: metrics.metric.Metric, data: Batch) -> float:
    return piece(*data).value


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_sharp_soft_bins_are_ece(bins: int) -> None:
    data = batch()
    # metrics sum in fixed point of 30 bits: 400 rows are exact to 4e-7, in practice to 1e-8
    assert SoftBinnedECE(bins, 1e-9, 1)(*data).item() == pytest.approx(
        metric(metrics.ECE(bins), data), abs=1e-8
    )
    assert SoftBinnedECE(bins, 1e-9, 2)(*data).item() == pytest.approx(
        metric(metrics.RMSCE(bins), data), abs=1e-8
    )


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_sharp_dece_is_ece(bins: int) -> None:
    data = batch()
    assert DECE(bins, 1e9, 1e-9)(*data).item() == pytest.approx(metric(metrics.ECE(bins), data), abs=1e-8)


def test_dece_bins_are_those_of_sb_ece() -> None:
    confidence, bins, t = torch.rand(50, dtype=torch.float64), 15, 0.01
    b = torch.arange(bins, dtype=torch.float64)
    paper = (((b + 1) * confidence[:, None] - b * (b + 1) / (2 * bins)) / t).softmax(1)
    torch.testing.assert_close(log_soft_bins(confidence, bins, 2 * t / bins).exp(), paper)


@pytest.mark.parametrize("n", [2, 400, BLOCK + 1])  # above BLOCK the rows are taken in pieces
@pytest.mark.parametrize("bandwidth", [0.01, 0.1])
def test_sece_with_hard_accuracy_is_the_metric(n: int, bandwidth: float) -> None:
    data = batch(n)
    expected = metric(metrics.SECE(bandwidth), data)
    tolerance = 1e-9 if n <= BLOCK else 1e-7  # means are in fixed point of 30 bits; then also on a grid
    assert SECE(bandwidth, "hard")(*data).item() == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("n", [2, 400, BLOCK + 1])
@pytest.mark.parametrize("bandwidth", [0.02, 0.1])
def test_kde_ece_is_the_metric(n: int, bandwidth: float) -> None:
    data = batch(n)
    expected = metric(metrics.KdeECE(bandwidth), data)
    tolerance = 1e-9 if n <= BLOCK else 1e-4  # means are in fixed point of 30 bits; then also on a grid
    assert KdeECE(bandwidth)(*data).item() == pytest.approx(expected, abs=tolerance)


def test_sece_with_a_narrow_kernel_is_the_mean_gap_of_single_rows() -> None:
    confidence = torch.linspace(0.55, 0.95, 50, dtype=torch.float64)  # 0.008 apart: 800 bandwidths
    logits = torch.stack([confidence.log(), (1 - confidence).log()], 1)
    labels = (torch.arange(50) % 3 == 0).long()
    _, correct = top_label(logits, labels)
    soft = all_pairs_accuracy(logits, labels, 100)
    assert SECE(1e-5, "hard")(logits, labels).item() == pytest.approx(
        (correct - confidence).abs().mean().item()
    )
    assert SECE(1e-5)(logits, labels).item() == pytest.approx((soft - confidence).abs().mean().item())


def test_sece_with_a_broad_kernel_compares_with_mean_accuracy() -> None:
    """That is |mean accuracy - mean confidence| only if all confidences are on one side of the accuracy."""
    logits, labels = batch()
    confidence, correct = top_label(logits, labels)
    spread = (correct.mean() - confidence).abs().mean().item()
    gap = (correct.mean() - confidence.mean()).abs().item()
    assert SECE(10, "hard")(logits, labels).item() == pytest.approx(
        spread, abs=1e-3
    )  # (1/h)^2 / 8 is 1.25e-3
    assert spread > 1.2 * gap
    one_side = (3 * logits, (logits.argmin(1)))  # confident and wrong
    confidence, correct = top_label(*one_side)
    assert SECE(10, "hard")(*one_side).item() == pytest.approx(
        (confidence.mean() - correct.mean()).item(), abs=1e-9
    )


def test_sece_leaving_one_out_is_the_loop() -> None:
    logits, labels = batch(30)
    confidence, _ = top_label(logits, labels)
    soft, h = all_pairs_accuracy(logits, labels, 100).numpy(), 0.05
    c, total = confidence.numpy(), 0.0
    for i in range(30):
        weights = [math.exp(-((c[i] - c[j]) ** 2) / (2 * h * h)) if j != i else 0.0 for j in range(30)]
        total += abs(np.dot(weights, soft) / sum(weights) - c[i]) / 30
    assert SECE(h, leave_one_out=True)(logits, labels).item() == pytest.approx(total, abs=1e-12)


def test_all_pairs_accuracy_is_the_row_of_the_true_class_in_all_pairs() -> None:
    logits, labels = batch(20)
    probs = logits.softmax(1)
    pairs = (
        100 * (probs[:, :, None] - probs[:, None, :])
    ).sigmoid()  # N x K x K, as the published code has it
    rank = 0.5 + pairs.sum(1)[torch.arange(20), labels]
    torch.testing.assert_close(all_pairs_accuracy(logits, labels, 100), (2 - rank).relu(), atol=1e-13, rtol=0)


def test_mmce_in_its_limits() -> None:
    logits, labels = batch()
    confidence, correct = top_label(logits, labels)
    gap = (correct - confidence).mean().abs().item()
    assert MMCE(1e6)(logits, labels).item() == pytest.approx(gap, rel=1e-5)
    rms = (correct - confidence).square().mean().sqrt().item()
    assert MMCE(1e-5)(logits[:20], labels[:20]).item() == pytest.approx(
        (correct - confidence)[:20].square().mean().sqrt().item() / math.sqrt(20)
    )
    assert rms / math.sqrt(400) < MMCE()(logits, labels).item() < rms


def test_weighted_mmce_is_twice_mmce_when_half_is_right() -> None:
    logits, labels = batch()
    _, correct = top_label(logits, labels)
    rows = torch.cat([correct.nonzero()[:100, 0], (1 - correct).nonzero()[:100, 0]])
    half = (logits[rows], labels[rows])
    assert WeightedMMCE()(*half).item() == pytest.approx(2 * MMCE()(*half).item(), rel=1e-12)


def test_weighted_mmce_of_a_calibrated_model_is_not_zero() -> None:
    calibrated = batch(5000, error=0.0)
    assert MMCE()(*calibrated).item() < 0.01
    assert WeightedMMCE()(*calibrated).item() > 0.1


def test_mdca_is_classwise_ece_with_one_bin() -> None:
    data = batch()
    assert MDCA()(*data).item() == pytest.approx(metric(metrics.ClasswiseECE(1), data), abs=1e-8)
    logits, labels = data
    p = logits[0].softmax(0)[labels[0]].item()
    assert MDCA()(logits[:1], labels[:1]).item() == pytest.approx(2 / 5 * (1 - p))


def test_huber_is_half_the_square_or_the_gap() -> None:
    data = batch()
    gap = metric(metrics.ECE(1), data)
    assert Huber(1)(*data).item() == pytest.approx(gap**2 / 2, abs=1e-8)
    assert Huber(gap / 2)(*data).item() == pytest.approx(3 / 8 * gap**2, abs=1e-8)
    assert Huber(1e-6)(*data).item() / 1e-6 == pytest.approx(gap, abs=1e-5)


def test_soft_avuc_with_a_sharp_step_is_the_loop() -> None:
    logits, labels = batch(60)
    au = ac = ic = iu = 0.0
    for z, y in zip(logits.numpy(), labels.numpy(), strict=True):
        h = stats.entropy(np.exp(z))
        uncertain, right = h > 0.4 * math.log(5), z.argmax() == y
        au += right * uncertain * math.tanh(h)
        ac += right * (not uncertain) * (1 - math.tanh(h))
        ic += (not right) * (not uncertain) * (1 - math.tanh(h))
        iu += (not right) * uncertain * math.tanh(h)
    expected = math.log(1 + (au + ic) / (ac + iu))
    assert SoftAvUC(0.4, 1e-6)(logits, labels).item() == pytest.approx(expected, abs=1e-9)


def test_avuc_is_zero_for_certain_right_and_uncertain_wrong_rows() -> None:
    logits = torch.tensor([[40.0, 0, 0], [0, 40, 0], [1, 1, 1.001]], dtype=torch.float64)
    for piece in (AvUC(), SoftAvUC()):
        assert piece(logits, torch.tensor([0, 1, 0])).item() < 1e-3
        assert piece(logits, torch.tensor([1, 2, 2])).item() > 1


def test_canonical_kde_ece_is_the_loop_with_scipy() -> None:
    logits, labels = batch(25, classes=4)
    p, h, total = logits.softmax(1).numpy(), 0.1, 0.0
    for i in range(25):
        weights = np.array(
            [stats.dirichlet.pdf(p[i] / p[i].sum(), p[j] / h + 1) if j != i else 0.0 for j in range(25)]
        )
        happened = weights @ np.eye(4)[labels.numpy()] / weights.sum()
        total += (np.abs(happened - p[i]) ** 2).sum() / 25
    assert KdeECE(h, "dirichlet", 2)(logits, labels).item() == pytest.approx(total, abs=1e-10)


def test_canonical_kde_ece_of_two_classes_is_twice_the_beta_error_of_one() -> None:
    logits, labels = batch(40, classes=2)
    p, y, h = logits.softmax(1)[:, 1].numpy(), labels.numpy(), 0.05
    weights = stats.beta.pdf(p[:, None], p / h + 1, (1 - p) / h + 1)
    np.fill_diagonal(weights, 0)
    expected = 2 * np.abs(weights @ y / weights.sum(1) - p).mean()
    assert KdeECE(h, "dirichlet")(logits, labels).item() == pytest.approx(expected, abs=1e-12)


def test_kde_ece_sees_neighbours_where_confidence_rounds_to_one() -> None:
    """Logits 40 and 60 apart are both confidence 1 in float32, and still two places."""
    gaps = torch.tensor([40.0, 40.5, 60.0, 60.5])
    logits, labels = torch.stack([gaps, torch.zeros(4)], 1).requires_grad_(), torch.tensor([0, 0, 1, 1])
    value = KdeECE()(logits, labels)
    (grad,) = torch.autograd.grad(value, logits)
    assert value.isfinite()
    assert grad.isfinite().all()


def test_avuc_falls_with_overconfidence_where_most_rows_are_right() -> None:
    logits, labels = batch(5000, error=0.0)
    for piece in (AvUC(), SoftAvUC()):
        assert piece(4 * logits, labels) < 0.5 * piece(logits, labels)
