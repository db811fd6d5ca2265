"""The pieces that networks are made of, against loops from their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from calibrant.core.samples import InputShape
from calibrant.models import MLP, VGG16, ResNet18, ResNet32
from calibrant.models.blocks import Subsample, shortcut


@pytest.mark.parametrize("size", [6, 7])
def test_option_a_is_every_second_pixel_and_zeros(size: int) -> None:
    x = torch.randn(2, 3, size, size)
    found = Subsample(4, 2)(x)
    half = (size + 1) // 2
    assert found.shape == (2, 7, half, half)
    for row in range(half):
        for column in range(half):
            assert torch.equal(found[:, :3, row, column], x[:, :, 2 * row, 2 * column])
    assert not bool(found[:, 3:].any())


def test_a_shortcut_is_the_identity_where_the_shape_stays() -> None:
    assert isinstance(shortcut("identity", 8, 8, 1), nn.Identity)
    assert isinstance(shortcut("projection", 8, 8, 1), nn.Identity)
    assert isinstance(shortcut("identity", 8, 16, 2), Subsample)
    assert sum(value.numel() for value in shortcut("projection", 8, 16, 2).parameters()) == 8 * 16 + 32


def test_resnet32_with_silent_branches_is_its_shortcuts() -> None:
    """With every branch at 0 a network of option A subsamples its stem: a bug in a shortcut would show."""
    made = ResNet32().make(InputShape("image", (3, 32, 32)), 10).eval()
    with torch.no_grad():
        for block in list(made.trunk)[3:]:
            last = block.branch[-1]
            last.weight.zero_()
        x = torch.randn(2, 3, 32, 32)
        stem = made.trunk[:3](x)
        expected = torch.zeros(2, 64)
        expected[:, :16] = stem[:, :, ::4, ::4].mean((2, 3))
        # means of 64 numbers in float32
        torch.testing.assert_close(made.features(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("side", "seen"), [(32, 32), (36, 36), (64, 32), (96, 48), (224, 56)])
def test_the_first_stage_of_a_resnet_sees(side: int, seen: int) -> None:
    made = ResNet18(width=2).make(InputShape("image", (1, side, side)), 2).eval()
    blocks = [place for place, module in enumerate(made.trunk) if hasattr(module, "branch")]
    with torch.no_grad():
        assert made.trunk[: blocks[0]](torch.zeros(1, 1, side, side)).shape[-1] == seen


@pytest.mark.parametrize(("side", "left"), [(16, 1), (28, 1), (32, 1), (33, 2), (64, 2), (96, 3)])
def test_vgg_takes_the_mean_over_what_five_pools_leave(side: int, left: int) -> None:
    made = VGG16(width=2).make(InputShape("image", (3, side, side)), 2).eval()
    x = torch.randn(2, 3, side, side)
    with torch.no_grad():
        maps = made.trunk(x)
        assert maps.shape == (2, 16, left, left)
        torch.testing.assert_close(made.features(x), F.adaptive_avg_pool2d(maps, 1).flatten(1))


def test_mlp_without_hidden_layers_is_logistic_regression() -> None:
    made = MLP(depth=0).make(InputShape("image", (1, 4, 4)), 3)
    x = torch.randn(5, 1, 4, 4)
    torch.testing.assert_close(made(x), x.flatten(1) @ made.head.weight.T + made.head.bias)
