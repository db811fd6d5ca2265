"""Corruptions: each against its definition, all monotone in severity, and no row the worse for its neighbours."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from calibrant.core.errors import InputError, SpecError
from calibrant.data import FashionMini, corruptions, hashed
from calibrant.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt

NAMES = list(CORRUPTIONS)
DRAWN = ["gaussian_noise", "shot_noise", "impulse_noise", "motion_blur", "fog"]


def smooth(rows: int = 6, channels: int = 3, side: int = 32) -> torch.Tensor:
    """Images in colour that vary as photographs do: noise, smoothed at some scale and stretched."""
    rng = np.random.default_rng(0)
    fields = ndimage.gaussian_filter(rng.standard_normal((rows, channels, side, side)), (0, 0, 2, 2))
    low, high = fields.min((1, 2, 3), keepdims=True), fields.max((1, 2, 3), keepdims=True)
    return torch.from_numpy((255 * (fields - low) / (high - low)).astype(np.uint8))


def flat(value: int, rows: int = 4, channels: int = 3) -> torch.Tensor:
    return torch.full((rows, channels, 32, 32), value, dtype=torch.uint8)


def change(shown: torch.Tensor, images: torch.Tensor) -> float:
    return float((shown.double() - images.double()).abs().mean())


@pytest.mark.parametrize("name", NAMES)
def test_a_higher_severity_changes_more(name: str) -> None:
    for images in (smooth(), FashionMini().load().test.inputs[:200]):
        changes = [change(corrupt(images, name, severity), images) for severity in SEVERITIES]
        assert changes[0] > 0.2, "severity 1 can be seen in the numbers"
        assert all(a < b for a, b in pairwise(changes)), changes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "shape", [(3, 1, 28, 28), (2, 3, 64, 64), (2, 3, 17, 40), (1, 2, 5, 3), (0, 3, 32, 32)]
)
def test_shape_type_and_input_are_kept(name: str, shape: tuple[int, ...]) -> None:
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8))
    before = images.clone()
    shown = corrupt(images, name, 5)
    assert shown.shape == images.shape
    assert shown.dtype == torch.uint8
    assert torch.equal(images, before)
    last = corrupt(images.contiguous(memory_format=torch.channels_last), name, 5)
    assert torch.equal(last, shown), "the same numbers, however the memory lies"


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_its_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, ids = smooth(7), torch.tensor([5, 9, 1_000_000_007, 0, 4, 2**40, 8])
    whole = corrupt(images, name, 3, seed=4, rows=ids)
    order = torch.tensor([3, 6, 2])
    assert torch.equal(corrupt(images[order], name, 3, seed=4, rows=ids[order]), whole[order])
    sizes = []

    def watched(part: torch.Tensor, level: float, keys: torch.Tensor) -> torch.Tensor:
        sizes.append(part.numel())
        return kind.apply(part, level, keys)

    kind = CORRUPTIONS[name]
    monkeypatch.setattr(corruptions, "CORRUPTIONS", MappingProxyType({name: replace(kind, apply=watched)}))
    monkeypatch.setattr(corruptions, "BLOCK", 2 * images[0].numel())
    assert torch.equal(corrupt(images, name, 3, seed=4, rows=ids), whole)
    assert sizes == [2 * images[0].numel()] * 3 + [images[0].numel()], "memory is bounded by blocks"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU to compare with the CPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_the_device(name: str) -> None:
    """Random numbers are the same bits; sums and cosines differ in the last one, and then one value in 1,000 by a step.

    A coefficient of JPEG that lies on an edge may fall to the other side, and moves its block.
    """
    images = smooth(40)
    for severity in SEVERITIES:
        here, there = corrupt(images, name, severity), corrupt(images.cuda(), name, severity)
        assert there.is_cuda
        apart = (here.int() - there.cpu().int()).abs()
        assert float((apart > 0).double().mean()) < 1e-3
        assert int(apart.max()) <= 1 or name == "jpeg"


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_rows_decide_where_there_is_chance(name: str) -> None:
    images = smooth(1).expand(2, -1, -1, -1)
    one, again, other = corrupt(images, name, 3, 1), corrupt(images, name, 3, 1), corrupt(images, name, 3, 2)
    assert torch.equal(one, again)
    assert torch.equal(one, other) == (name not in DRAWN)
    assert torch.equal(one[0], one[1]) == (name not in DRAWN)


@pytest.mark.parametrize("name", ["gaussian_blur", "motion_blur", "contrast", "pixelate", "jpeg"])
def test_an_image_of_one_grey_stays_as_it_is(name: str) -> None:
    for value in (0, 100, 255):
        shown = corrupt(flat(value), name, 5)
        # JPEG rounds the mean of a block to its step: 16 * 7.1 / 8 at quality 7, half of it at most
        assert int((shown.int() - value).abs().max()) <= (8 if name == "jpeg" else 0)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise_is_normal_with_its_deviation(severity: int) -> None:
    level = CORRUPTIONS["gaussian_noise"].levels[severity - 1]
    noise = corrupt(flat(128, 40), "gaussian_noise", severity).double() - 128
    inside = noise[noise.abs() < 100].numpy() / 255  # what is clipped is another matter
    assert abs(inside.mean()) < 5 * level / inside.size**0.5
    if severity <= 2:  # nothing is clipped; rounding adds 1/12 of a step
        expected = (level**2 + 1 / 12 / 255**2) ** 0.5
        assert inside.std() == pytest.approx(expected, rel=5 * (2 * inside.size) ** -0.5)


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_shot_noise_counts_photons(severity: int) -> None:
    """Against SciPy's Poisson distribution, by a chi-squared test over counts."""
    white = CORRUPTIONS["shot_noise"].levels[severity - 1]
    for value in (3, 60, 120):
        images = flat(value, 10).float()
        keys = hashed.keys("test", severity, torch.arange(10))
        counts = corruptions.shot_noise(images, white, keys) * (white / 255)
        counts = counts.round().long().flatten().numpy()
        law = stats.poisson(value / 255 * white)
        low, high = int(law.ppf(1e-3)), int(law.ppf(1 - 1e-3))
        seen = np.bincount(counts.clip(low, high) - low, minlength=high - low + 1)
        expected = law.pmf(np.arange(low, high + 1))
        expected[0], expected[-1] = law.cdf(low), law.sf(high - 1)
        assert stats.chisquare(seen, expected * counts.size).pvalue > 1e-4  # nine tests, seeded
    assert not corrupt(flat(0), "shot_noise", severity).any(), "where there is no light there are no photons"


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulses_replace_their_share(severity: int) -> None:
    shown = corrupt(flat(128, 20), "impulse_noise", severity)
    share, n = CORRUPTIONS["impulse_noise"].levels[severity - 1], shown.numel()
    black, white = int((shown == 0).sum()), int((shown == 255).sum())
    assert int((shown == 128).sum()) == n - black - white
    assert abs(black + white - share * n) < 5 * (n * share * (1 - share)) ** 0.5
    assert abs(black - white) < 5 * (black + white) ** 0.5
    if severity > 1:
        before = corrupt(flat(128, 20), "impulse_noise", severity - 1)
        assert torch.equal(shown[before != 128], before[before != 128]), "what was hit stays hit"


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_blur_is_that_of_scipy(severity: int, side: int) -> None:
    images = smooth(2, side=side)
    sigma = CORRUPTIONS["gaussian_blur"].levels[severity - 1] * side / 32
    expected = ndimage.gaussian_filter(
        images.double().numpy(), (0, 0, sigma, sigma), mode="nearest", truncate=6
    )
    # the weights beyond four deviations, 6e-5 of all, are cut off; and rounding gives half a level
    assert np.abs(corrupt(images, "gaussian_blur", severity).numpy() - expected).max() <= 0.55


@pytest.mark.parametrize(("angle", "moved", "kept"), [(0.0, 3, 2), (0.5, 2, 3)])
def test_motion_blur_is_the_mean_along_its_path(
    angle: float, moved: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Across and down, against shifted copies; a path of 4 pixels is nine places half a pixel apart."""
    monkeypatch.setattr(hashed, "uniform", lambda keys, number: torch.full((len(keys), number), angle))
    images = smooth(2)
    shown = corruptions.motion_blur(images.float(), 4, torch.zeros(2))
    pixels = np.pad(
        images.double().numpy(), [(4, 4) if d in (2, 3) else (0, 0) for d in range(4)], mode="edge"
    )
    expected = np.mean([ndimage.shift(pixels, [way if d == moved else 0 for d in range(4)], order=1)
                        for way in np.linspace(-2, 2, 9)], axis=0)[:, :, 4:-4, 4:-4]  # fmt: skip
    np.testing.assert_allclose(shown.numpy(), expected, rtol=0, atol=0.01)  # positions in float32, 255 levels
    stripes = images.float().mean(moved, keepdim=True).expand_as(images)
    along = corruptions.motion_blur(stripes.contiguous(), 9, torch.zeros(2))
    torch.testing.assert_close(along, stripes, rtol=0, atol=0.01)
    assert kept != moved


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_brightness_and_pixelate_by_their_formulas(severity: int) -> None:
    images = smooth()
    x = images.double().numpy()
    level = CORRUPTIONS["contrast"].levels[severity - 1]
    mean = x.mean((1, 2, 3), keepdims=True)
    # float32 against float64: a value that lies on a half may be rounded the other way
    assert np.abs(corrupt(images, "contrast", severity).numpy() - (mean + level * (x - mean))).max() <= 0.501
    level = CORRUPTIONS["brightness"].levels[severity - 1]
    assert (
        np.abs(corrupt(images, "brightness", severity).numpy() - (x + 255 * level).clip(0, 255)).max()
        <= 0.501
    )
    shown = corrupt(images, "pixelate", 5).numpy()  # a quarter of the side: blocks of 4 x 4
    blocks = x.reshape(6, 3, 8, 4, 8, 4).mean((3, 5), keepdims=True)
    assert np.abs(shown.reshape(6, 3, 8, 4, 8, 4) - blocks).max() <= 0.501


def test_fog_is_white_in_patches_between_half_and_all_of_its_level() -> None:
    for severity in SEVERITIES:
        level = CORRUPTIONS["fog"].levels[severity - 1]
        white = corrupt(flat(0, 30), "fog", severity).double() / 255
        assert float(white.min()) >= level / 2 - 0.003
        assert float(white.max()) <= level + 0.003
        assert float(white.std()) > 0.05 * level
        assert torch.equal(white[:, :1].expand_as(white), white), "fog has no colour"
        assert (corrupt(flat(255), "fog", severity) == 255).all()


@pytest.mark.parametrize("quality", [7, 35, 60, 90])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_that_of_libjpeg(quality: int, channels: int) -> None:
    """Pillow's, without subsampling. It transforms in whole numbers, so single coefficients fall to another step."""
    images = smooth(10, channels)
    shown = corruptions.jpeg(images.float(), quality, torch.zeros(10)).round().clamp(0, 255).numpy()
    expected = np.empty_like(shown)
    for row, image in enumerate(images.numpy()):
        stream = io.BytesIO()
        pixels = image[0] if channels == 1 else image.transpose(1, 2, 0)
        Image.fromarray(pixels).save(stream, "JPEG", quality=quality, subsampling=0)
        expected[row] = np.asarray(Image.open(stream)).reshape(32, 32, channels).transpose(2, 0, 1)
    lost = np.abs(expected - images.numpy()).mean()
    assert np.abs(shown - expected).mean() < 0.35 * lost
    assert np.median(np.abs(shown - expected)) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "contrst"}, "no corruption 'contrst'; did you mean 'contrast'"),
        ({"severity": 0}, "a severity is 1, 2, 3, 4 or 5, not 0; without corruption, take the images"),
        ({"severity": 6}, "not 6"),
        ({"images": flat(0).float()}, "images to corrupt are uint8"),
        ({"images": flat(0)[0]}, r"not torch.uint8 of shape \[3, 32, 32\]"),
        ({"rows": torch.arange(3)}, r"there are 4 images and row ids of shape \[3\]"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((SpecError, InputError), match=message):
        corrupt(**{"images": flat(0), "name": "contrast", **arguments})  # type: ignore[arg-type]


def test_the_table_is_frozen_and_its_paper_is_known() -> None:
    with pytest.raises(TypeError):
        CORRUPTIONS["mine"] = CORRUPTIONS["fog"]  # type: ignore[index]
    assert len(NAMES) == 10
    assert all(len(kind.levels) == 5 and len(set(kind.levels)) == 5 for kind in CORRUPTIONS.values())
    bibliography = Path(__file__).parents[2] / "docs" / "references.bib"
    assert "{hendrycks2019robustness," in bibliography.read_text(encoding="utf-8")
    assert "hendrycks2019robustness" in (corruptions.__doc__ or "")


def test_the_documentation_has_the_levels_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | {kind.unit} | {' | '.join(f'{level:g}' for level in kind.levels)} |\n"
        for name, kind in CORRUPTIONS.items()
    ]
    assert "".join(rows) in page


def splitmix(state: int) -> int:
    """The finaliser of SplitMix64 in Python's integers, from its definition."""
    mask = (1 << 64) - 1
    x = state & mask
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


def test_hashes_are_those_of_splitmix64() -> None:
    """From state 0 its published first number is 0xE220A8397B1DCDAF, the finaliser of its first step."""
    assert splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    keys = torch.tensor([0, -5, 2**62])
    found = hashed.uniform(keys, 4)
    for row, key in enumerate(keys.tolist()):
        for place in range(4):
            bits = splitmix(key + (place + 1) * 0x9E3779B97F4A7C15) >> 41
            assert float(found[row, place]) == (bits + 0.5) / 2**23


Draw = Callable[[torch.Tensor, int], torch.Tensor]


@pytest.mark.parametrize(("draw", "law"), [(hashed.uniform, stats.uniform), (hashed.normal, stats.norm)])
def test_numbers_have_their_law_within_rows_across_rows_and_across_seeds(draw: Draw, law: object) -> None:
    cdf = law.cdf  # type: ignore[attr-defined]
    within = draw(hashed.keys("test", 0, torch.arange(1)), 50_000).double().flatten().numpy()
    across = draw(hashed.keys("test", 0, torch.arange(50_000)), 1).double().flatten().numpy()
    seeds = np.concatenate(
        [draw(hashed.keys("test", s, torch.arange(10)), 10).double().flatten() for s in range(500)]
    )
    for numbers in (within, across, seeds):
        assert stats.kstest(numbers, cdf).pvalue > 1e-3
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 5 / len(numbers) ** 0.5
    assert hashed.uniform(hashed.keys("test", 0, torch.arange(1)), 200_000).unique().numel() > 190_000
