"""What JPEG loses, as arithmetic on tensors: the packing after it loses nothing, and is left out.

Colour is not subsampled (4:4:4). Sums run over eight places one after the other and never through a matrix product, so
that no library's order of summation, and no reduced precision, moves a coefficient over a rounding edge.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LUMINANCE = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = tuple(
    {0: (17, 18, 24, 47), 1: (18, 21, 26, 66), 2: (24, 26, 56, 99), 3: (47, 66, 99, 99)}[row][column]
    if row < 4 and column < 4
    else 99
    for row in range(8)
    for column in range(8)
)
"""The quantisation tables that the standard (ITU T.81, annex K) gives as examples, and that everybody uses."""


def lossy(images: Tensor, quality: float) -> Tensor:
    """Pixels [B, C, H, W], float from 0 to 255, as they come back from JPEG of that quality, 1 to 100."""
    height, width = images.shape[2:]
    planes = _luma(images) if images.shape[1] == 3 else images
    planes = F.pad(planes, (0, -width % 8, 0, -height % 8), mode="replicate") - 128
    b, c, h, w = planes.shape
    blocks = planes.view(b, c, h // 8, 8, w // 8, 8)
    cosines = [[_cosine(u, x) for x in range(8)] for u in range(8)]
    back = [list(column) for column in zip(*cosines, strict=True)]
    steps = torch.stack([_steps(table, quality) for table in (LUMINANCE, CHROMINANCE, CHROMINANCE)])
    step = (steps if c == 3 else steps[:1]).to(images.device).view(-1, 1, 8, 1, 8)
    blocks = (_along(_along(blocks, 3, cosines), 5, cosines) / step).round_() * step
    planes = _along(_along(blocks, 5, back), 3, back).reshape(b, c, h, w)[:, :, :height, :width] + 128
    return _colour(planes) if c == 3 else planes


def _cosine(u: int, x: int) -> float:
    """The orthonormal discrete cosine transform of eight places."""
    return (0.5 if u else math.sqrt(1 / 8)) * math.cos((2 * x + 1) * u * math.pi / 16)


def _along(blocks: Tensor, dim: int, matrix: list[list[float]]) -> Tensor:
    """A matrix applied to the eight places of one dimension."""
    columns = torch.tensor(matrix, device=blocks.device).t()
    shape = [8 if each == dim else 1 for each in range(blocks.ndim)]
    out = torch.zeros_like(blocks)
    for x in range(8):
        out += blocks.narrow(dim, x, 1) * columns[x].view(shape)
    return out


def _steps(table: tuple[int, ...], quality: float) -> Tensor:
    """The table for a quality, scaled as libjpeg does it."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    return ((torch.tensor(table) * scale + 50) / 100).floor().clamp(1, 255).view(8, 8)


def _luma(images: Tensor) -> Tensor:
    """Brightness and two differences of colour, of JFIF, in whole numbers."""
    red, green, blue = images.unbind(1)
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    return torch.stack([y, (blue - y) / 1.772 + 128, (red - y) / 1.402 + 128], dim=1).round_()


def _colour(planes: Tensor) -> Tensor:
    y, blue, red = planes.round().clamp_(0, 255).unbind(1)
    blue, red = blue - 128, red - 128
    return torch.stack([y + 1.402 * red, y - 0.344136 * blue - 0.714136 * red, y + 1.772 * blue], dim=1)
