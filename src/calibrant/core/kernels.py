"""Kernel smoothing of a one-dimensional empirical measure without an N x N array.

Up to DENSE rows a kernel sum is the double sum of its definition. Beyond, the rows are spread onto a uniform grid
by cubic Lagrange weights, the kernel acts on the grid, and the result is read back at the rows by the same
weights; with a grid 64 times finer than the kernel the two agree to about 1e-8 (a test holds them together).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

DENSE = 2048
_POINTS = 1 << 15  # points whose weights are held at a time: they stay in the cache
Array = np.ndarray


@dataclass(frozen=True)
class Stencil:
    """Points in [0, 1], each between four neighbouring nodes of a uniform grid of `cells` + 1 nodes."""

    points: Array
    cells: int

    def spread(self, mass: Array | None = None) -> Array:
        """Move the mass of the points (1 each, unless given) onto the nodes."""
        out = np.zeros(self.cells + 1)
        for rows, base, weights in self._blocks():
            part = (
                None if mass is None else torch.from_numpy(np.ascontiguousarray(mass[rows], dtype=np.float64))
            )
            for offset, weight in enumerate(weights):
                moved = weight if part is None else weight * part
                out[offset : offset + self.cells - 2] += torch.bincount(base, moved, self.cells - 2).numpy()
        return out

    def read(self, values: Array) -> Array:
        """Interpolate node values at the points; `values` may have leading axes."""
        out = np.empty((*values.shape[:-1], len(self.points)))
        for rows, base, weights in self._blocks():
            first = base.numpy()
            out[..., rows] = values[..., first] * weights[0].numpy()
            for offset in (1, 2, 3):
                out[..., rows] += values[..., first + offset] * weights[offset].numpy()
        return out

    def _blocks(self) -> Iterator[tuple[slice, Tensor, tuple[Tensor, ...]]]:
        """The first node and the cubic Lagrange weights of some points; near the ends they are one-sided."""
        for start in range(0, len(self.points), _POINTS):
            rows = slice(start, start + _POINTS)
            position = (
                torch.from_numpy(np.ascontiguousarray(self.points[rows], dtype=np.float64)) * self.cells
            )
            base = position.floor().long().sub_(1).clamp_(0, self.cells - 3)
            t = position.sub_(base)  # in [1, 2] inside, in [0, 3] at the ends
            t1, t2, t3 = t - 1, t - 2, t - 3
            left, right = t1 * t2, t * t3
            yield rows, base, (left * t3 / -6, right * t2 / 2, right * t1 / -2, left * t / 6)


def gaussian_cells(bandwidth: float) -> int:
    """A grid on [0, 1] that is 64 times finer than the bandwidth."""
    return max(64, int(np.ceil(64 / bandwidth)))


def gaussian_sums(mass: Array, bandwidth: float) -> Array:
    """Convolve node masses (last axis, nodes on [0, 1]) with exp(-d^2 / 2h^2); the kernel is 1 at distance 0."""
    nodes = mass.shape[-1]
    size = 1 << (2 * nodes - 1).bit_length()
    distance = np.minimum(np.arange(size), size - np.arange(size)) / (nodes - 1)
    kernel = np.fft.rfft(np.exp(-0.5 * (distance / bandwidth) ** 2))
    return np.fft.irfft(np.fft.rfft(mass, size) * kernel, size)[..., :nodes]


def cosine_coefficients(mass: Array) -> Array:
    """sum_j mass_j cos(pi k x_j) for k = 0..M, where x_j = j/M are the nodes (last axis)."""
    doubled = mass.copy()
    doubled[..., 0] *= 2
    doubled[..., -1] *= 2
    return np.fft.rfft(np.concatenate([doubled, mass[..., -2:0:-1]], axis=-1)).real / 2


def reflected_gaussian(coefficients: Array, width: Array) -> Array:
    """Smooth with the Gaussian of std `width` reflected at 0 and 1, and return the density at the nodes.

    That kernel is the heat kernel of the interval: in cosines it is a factor exp(-(pi k width)^2 / 2).
    """
    m = coefficients.shape[-1] - 1
    k = np.arange(m + 1)
    damped = coefficients * np.exp(-0.5 * (np.pi * k * np.asarray(width)[..., None]) ** 2)
    return np.fft.irfft(damped * (2 * m), 2 * m)[..., : m + 1]


def beta_log_kernel(at: Array, centre: Array, bandwidth: float) -> Array:
    """ln Beta(at; centre/h + 1, (1 - centre)/h + 1), for every pair: one row for each `at`."""
    from scipy.special import betaln, xlog1py, xlogy

    a, b = centre / bandwidth, (1 - centre) / bandwidth
    out: Array = xlogy(a, at[:, None]) + xlog1py(b, -at[:, None]) - betaln(a + 1, b + 1)
    return out
