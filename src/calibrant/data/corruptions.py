"""Corrupted images, for tests under shift: common damages in five severities, as arithmetic on the images' device.

The kinds follow the benchmark of Hendrycks and Dietterich (2019, `hendrycks2019robustness`), the parameters are our
own: results here compare methods with each other, and not with published numbers on CIFAR-10-C. Lengths are in pixels
of an image of 32 a side and grow with it. What is random in a row depends on seed and row id alone ("hashed"), and not
on the batch that the row is in, the order, or the device; a higher severity makes more of the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.errors import InputError, SpecError, nearest
from calibrant.data import hashed
from calibrant.data.jpeg import lossy

SEVERITIES = (1, 2, 3, 4, 5)
BLOCK = 1 << 20
"""Pixel values that are worked on at once: the memory beside input and output is some tens of megabytes."""

Apply = Callable[[Tensor, float, Tensor], Tensor]


@dataclass(frozen=True)
class Corruption:
    """One kind of damage: what its level means, the levels of severities 1 to 5, and the function.

    The function takes pixels [B, C, H, W] as float32 from 0 to 255, a level and the keys of the rows; what it gives is
    rounded and clipped by its caller.
    """

    unit: str
    levels: tuple[float, float, float, float, float]
    apply: Apply


def corrupt(
    images: Tensor, name: str, severity: int = 3, seed: int = 0, rows: Tensor | None = None
) -> Tensor:
    """Images, uint8 [N, C, H, W], as one corruption of `CORRUPTIONS` shows them, on their device.

    `rows` are the ids of the images, so that a subset of a dataset is corrupted as in the whole; without them the row
    numbers are taken.
    """
    if name not in CORRUPTIONS:
        raise SpecError(f"no corruption {name!r}{nearest(name, CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise SpecError(f"a severity is 1, 2, 3, 4 or 5, not {severity}; without corruption, take the images")
    if images.dtype != torch.uint8 or images.ndim != 4:
        shape = list(images.shape)
        raise InputError(f"images to corrupt are uint8 [N, C, H, W], not {images.dtype} of shape {shape}")
    ids = torch.arange(len(images)) if rows is None else rows
    if ids.shape != images.shape[:1]:
        raise InputError(f"there are {len(images):,} images and row ids of shape {list(ids.shape)}")
    kind = CORRUPTIONS[name]
    keys = hashed.keys(name, seed, ids.to(images.device, torch.int64))
    step = max(1, BLOCK // max(1, images[:1].numel()))
    out = torch.empty_like(images)
    for start in range(0, len(images), step):
        part = slice(start, start + step)
        shown = kind.apply(images[part].float().contiguous(), kind.levels[severity - 1], keys[part])
        out[part] = shown.round_().clamp_(0, 255).to(torch.uint8)
    return out


def gaussian_noise(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Normal noise in each channel of each pixel."""
    return images + 255 * level * hashed.normal(keys, images[0].numel()).view_as(images)


def shot_noise(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Photons are counted: Poisson numbers whose mean is the pixel, `level` of them in a white one."""
    ladder = poisson_ladder(level).to(images.device)
    u = hashed.uniform(keys, images[0].numel()).view_as(images)
    # row p of the ladder, moved up by p, is the p-th piece of one ascending sequence
    place = torch.searchsorted(ladder.flatten(), images.double() + u)
    return (place - images.long() * ladder.shape[1]) * (255 / level)


@lru_cache
def poisson_ladder(white: float) -> Tensor:
    """For each pixel value p, p + P(count <= k) in row p, k = 0, 1, ...: counts beyond 10 deviations are cut off."""
    mean = torch.arange(256, dtype=torch.float64)[:, None] * (white / 255)
    count = torch.arange(math.ceil(white + 10 * math.sqrt(white) + 20), dtype=torch.float64)
    ladder = (torch.xlogy(count, mean) - mean - torch.lgamma(count + 1)).exp().cumsum(1).clamp(max=1)
    ladder[:, -1] = 1
    return ladder + torch.arange(256)[:, None]


def impulse_noise(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """A share of the values is replaced by 0 or 255, each as often."""
    hit, white = hashed.uniform(keys, 2 * images[0].numel()).view(len(images), 2, *images.shape[1:]).unbind(1)
    return torch.where(hit < level, (white < 0.5) * 255.0, images)


def gaussian_blur(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Each pixel is the mean of its neighbours, weighted by a normal density; edges are continued."""
    sigma = level * side(images) / 32
    reach = math.ceil(4 * sigma)
    weights = [math.exp(-((x / sigma) ** 2) / 2) for x in range(-reach, reach + 1)]
    for dim, padding in ((2, (0, 0, reach, reach)), (3, (reach, reach, 0, 0))):
        wide, length = F.pad(images, padding, mode="replicate"), images.shape[dim]
        images = torch.zeros_like(images)
        for at, weight in enumerate(weights):
            images += wide.narrow(dim, at, length) * (weight / sum(weights))
    return images


def motion_blur(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Each pixel is the mean along a straight path through it, in a direction of the image's own."""
    length, (height, width) = level * side(images) / 32, images.shape[2:]
    angle = math.pi * hashed.uniform(keys, 1)
    # where each pixel lies, from -1 to 1 between the outer edges, as grid_sample has it
    x = (2 * torch.arange(width, device=images.device) + 1) / width - 1
    y = (2 * torch.arange(height, device=images.device) + 1) / height - 1
    taps = 2 * math.ceil(length) + 1
    blurred = torch.zeros_like(images)
    for tap in range(taps):
        way = length * (tap / (taps - 1) - 0.5)
        across = (x + angle.cos() * (2 * way / width))[:, None].expand(-1, height, -1)
        down = (y + angle.sin() * (2 * way / height))[:, :, None].expand(-1, -1, width)
        grid = torch.stack([across, down], dim=3)
        blurred += F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return blurred / taps


def contrast(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """What a pixel differs from the image's mean is made smaller: the share `level` of it is left."""
    mean = images.double().mean((1, 2, 3), keepdim=True).float()  # of whole numbers: exact in any order
    return mean + level * (images - mean)


def brightness(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Every value is raised by the same; what was bright becomes white."""
    return images + 255 * level


def fog(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """White is laid over the image, up to `level` of it, in patches: noise of three sizes, interpolated."""
    noise = torch.zeros_like(images[:, :1])
    numbers, start = hashed.uniform(keys, 9 + 25 + 81), 0
    for cells in (3, 5, 9):
        field = numbers[:, start : start + cells**2].view(-1, 1, cells, cells)
        start += cells**2
        noise += (
            F.interpolate(field, images.shape[2:], mode="bilinear", align_corners=True)
            * (8 / 7)
            / (cells - 1)
        )
    return images + (255 - images) * level * (0.5 + 0.5 * noise)


def pixelate(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Fewer and larger pixels: the share `level` of them along each side, each the mean of the area that it covers."""
    height, width = (larger_pixels(length, level).to(images.device) for length in images.shape[2:])
    return (height @ images.double() @ width.t()).float()


@lru_cache
def larger_pixels(length: int, level: float) -> Tensor:
    """What a line of pixels is multiplied by: a place gets the mean over the larger pixel in which its centre lies."""
    cells = max(1, round(level * length))
    edges = torch.arange(cells + 1, dtype=torch.float64)[:, None] * (length / cells)
    pixels = torch.arange(length, dtype=torch.float64)
    covered = ((edges[1:] - pixels).clamp(0, 1) - (edges[:-1] - pixels).clamp(0, 1)) * (cells / length)
    return covered[((pixels + 0.5) * cells / length).long()]


def jpeg(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """As JPEG of the quality `level` shows it, without subsampling of colour."""
    return lossy(images, level)


def side(images: Tensor) -> int:
    """The shorter side, in pixels."""
    return min(images.shape[2:])


CORRUPTIONS: Mapping[str, Corruption] = MappingProxyType(
    {
        "gaussian_noise": Corruption(
            "standard deviation, of the range", (0.03, 0.06, 0.1, 0.15, 0.22), gaussian_noise
        ),
        "shot_noise": Corruption("photons of a white pixel", (400, 150, 60, 25, 10), shot_noise),
        "impulse_noise": Corruption(
            "share of values replaced", (0.01, 0.03, 0.07, 0.14, 0.25), impulse_noise
        ),
        "gaussian_blur": Corruption(
            "standard deviation, in pixels", (0.4, 0.7, 1.0, 1.5, 2.2), gaussian_blur
        ),
        "motion_blur": Corruption("length of the path, in pixels", (2, 4, 6, 9, 13), motion_blur),
        "contrast": Corruption("share of the contrast left", (0.75, 0.55, 0.4, 0.25, 0.12), contrast),
        "brightness": Corruption("light added, of the range", (0.06, 0.12, 0.2, 0.3, 0.4), brightness),
        "fog": Corruption("share of white, at most", (0.2, 0.35, 0.5, 0.65, 0.8), fog),
        "pixelate": Corruption("share of the sides left", (0.75, 0.6, 0.45, 0.35, 0.25), pixelate),
        "jpeg": Corruption("quality of the file", (60, 35, 20, 12, 7), jpeg),
    }
)
"""Every kind by its name, in the order in which tables show them."""
