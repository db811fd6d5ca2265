"""Mixup and data pruning: arithmetic on tensors, with randomness that is handed in."""

import pytest
import torch
import torch.nn.functional as F

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.objective import objective
from calibrant.losses import CE, Mixup, Pruning


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_mixup_mixes_inputs_and_targets_alike() -> None:
    inputs = torch.randn(8, 3, 4, 4, generator=generator())
    labels = torch.arange(8) % 3
    mixed, targets = Mixup(0.4)(inputs, labels, 3, generator(1))
    pairing = Mixup(0.4).draw(8, generator(1))
    share, partner = float(pairing.share), pairing.partner
    one_hot = F.one_hot(labels, 3).float()
    torch.testing.assert_close(mixed, share * inputs + (1 - share) * inputs[partner])
    torch.testing.assert_close(targets, share * one_hot + (1 - share) * one_hot[partner])
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    assert 0 < share < 1
    assert sorted(partner.tolist()) == list(range(8))


def test_mixup_with_alpha_0_mixes_nothing() -> None:
    inputs, labels = torch.randn(5, 2, generator=generator()), torch.tensor([0, 1, 2, 1, 0])
    mixed, targets = Mixup(0.0)(inputs, labels, 3, generator())
    assert torch.equal(mixed, inputs)
    assert torch.equal(targets, F.one_hot(labels, 3).float())


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_beta_distributed(alpha: float) -> None:
    """Mean 1/2 and variance 1 / (4 (2 alpha + 1)), within four standard errors of 2,000 draws."""
    g = generator()
    shares = torch.stack([Mixup(alpha).draw(1, g).share for _ in range(2000)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert float(shares.mean()) == pytest.approx(0.5, abs=4 * (variance / 2000) ** 0.5)
    assert float(shares.var()) == pytest.approx(variance, rel=0.15)


def test_soft_targets_stay_soft_and_losses_follow() -> None:
    soft = torch.randn(6, 4, generator=generator()).softmax(1)
    logits, targets = Mixup()(torch.randn(6, 4, generator=generator(2)), soft, 4, generator(3))
    assert targets.shape == (6, 4)
    for spec in (
        "ce",
        "focal(gamma=2)",
        "brier",
        "label_smoothing",
        "mbls",
        "logit_norm",
        "flsd53",
        "ce - 0.1*entropy",
    ):
        assert objective(spec)(logits, targets).isfinite(), spec


def test_mixed_cross_entropy_is_the_mix_of_two() -> None:
    labels = torch.tensor([0, 1, 2, 1])
    logits = torch.randn(4, 3, generator=generator(4))
    pairing = Mixup().draw(4, generator(5))
    targets = Mixup().mix(F.one_hot(labels, 3).float(), pairing)
    share = float(pairing.share)
    expected = share * CE()(logits, labels) + (1 - share) * CE()(logits, labels[pairing.partner])
    torch.testing.assert_close(CE()(logits, targets), expected)


def test_the_same_seed_gives_the_same_batch() -> None:
    inputs, labels = torch.randn(5, 2), torch.tensor([0, 1, 2, 1, 0])
    first, again = (Mixup()(inputs, labels, 3, generator(7)) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    with pytest.raises(CalibrantError, match="alpha must be"):
        Mixup(-1.0)


def test_pruning_drops_the_least_confident() -> None:
    ids = torch.tensor([10, 20, 30, 40, 50])
    scores = torch.tensor([0.9, 0.2, 0.5, 0.3, 0.7])
    assert Pruning(0.4).keep(ids, scores).tolist() == [10, 30, 50]
    assert Pruning(0.39).keep(ids, scores).tolist() == [10, 30, 40, 50]
    assert torch.equal(Pruning(0.0).keep(ids, scores), ids)
    assert Pruning(0.99).keep(ids, scores).tolist() == [10]
    assert Pruning(0.4).keep(ids, torch.ones(5)).tolist() == [10, 20, 30]  # of equals the later go
    assert Pruning(0.5).keep(ids[:1], scores[:1]).tolist() == [10]


def test_pruning_is_due_every_few_epochs() -> None:
    assert [epoch for epoch in range(13) if Pruning(every=4).due(epoch)] == [4, 8, 12]
    with pytest.raises(InputError, match="two columns of one length"):
        Pruning().keep(torch.arange(3), torch.ones(4))
    with pytest.raises(CalibrantError, match="fraction must be"):
        Pruning(1.0)
    with pytest.raises(CalibrantError, match="every must be"):
        Pruning(every=0)
