"""Random crops and flips of a whole batch on its device: index arithmetic, no loop over images.

Random numbers are drawn for an epoch at once, on the CPU, so that every device and every number of processes sees the
same views; `view` is arithmetic on tensors and can be captured or compiled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Views:
    """One view of each of N images: by how many pixels it is moved [N, 2], down and across, and whether mirrored."""

    shift: Tensor
    mirrored: Tensor

    def take(self, rows: Tensor | slice) -> Views:
        """The views of some of the images."""
        return Views(self.shift[rows], self.mirrored[rows])


def draw_views(rows: int, pad: int, generator: torch.Generator) -> Views:
    """Moves of up to `pad` pixels in each direction, and a fair coin for each mirror."""
    shift = torch.randint(-pad, pad + 1, (rows, 2), generator=generator, dtype=torch.int64)
    return Views(shift, coins(rows, generator))


def coins(rows: int, generator: torch.Generator) -> Tensor:
    """A fair coin for each row."""
    return torch.randint(0, 2, (rows,), generator=generator, dtype=torch.int64).bool()


def view(images: Tensor, views: Views) -> Tensor:
    """Images [B, C, H, W] as their views show them; what comes in from outside is black, as with a padded crop."""
    b, c, h, w = images.shape
    down = torch.arange(h, device=images.device)[None] + views.shift[:, :1]
    across = torch.arange(w, device=images.device)[None].expand(b, w)
    across = torch.where(views.mirrored[:, None], w - 1 - across, across) + views.shift[:, 1:]
    inside = ((down >= 0) & (down < h))[:, :, None] & ((across >= 0) & (across < w))[:, None, :]
    pixel = down.clamp(0, h - 1)[:, :, None] * w + across.clamp(0, w - 1)[:, None, :]
    moved = images.reshape(b, c, h * w).gather(2, pixel.reshape(b, 1, h * w).expand(b, c, h * w))
    return moved.view(b, c, h, w) * inside[:, None]


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of uint8 images, on the scale 0 to 1, from exact integer sums."""
    channels = images.transpose(0, 1).reshape(images.shape[1], -1)
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in channels]).double()
    level = torch.arange(256, dtype=torch.float64, device=images.device) / 255
    mean = (counts @ level) / counts.sum(1)
    spread = ((counts @ level.square()) / counts.sum(1) - mean.square()).clamp(min=0).sqrt()
    return mean.float(), torch.where(spread > 0, spread, torch.ones_like(spread)).float()
