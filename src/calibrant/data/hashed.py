"""Random numbers by hash: each depends on a seed, on a row's id and on its place in the row, and on nothing else.

A generator gives its numbers in the order in which they are asked for, and others on another kind of device. These are
the same on every device, for a row alone and among others, and in any order: what a row is given is part of the row.
The hash is the finaliser of SplitMix64 over a counter, in integer arithmetic on tensors that wraps around.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND = 0x94D049BB133111EB - (1 << 64)
BITS = 23
"""Of a uniform number, so that it and its half step are exact in float32."""


def keys(purpose: str, seed: int, rows: Tensor) -> Tensor:
    """A key for each row id [N], int64: where its numbers for one purpose begin."""
    start = hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:8]
    return _mixed(_mixed(rows * GOLDEN + int.from_bytes(start, "little", signed=True)))


def uniform(keys: Tensor, number: int) -> Tensor:
    """Numbers in (0, 1), float32 [N, number]: odd multiples of 2^-24, so that neither end is met."""
    return _unit(_hashes(keys, number), 0)


def normal(keys: Tensor, number: int) -> Tensor:
    """Standard normal numbers, float32 [N, number], by Box and Muller from two parts of one hash; up to 5.8."""
    hashes = _hashes(keys, number)
    radius = _unit(hashes, 0).log_().mul_(-2).sqrt_()
    return radius.mul_(_unit(hashes, BITS).mul_(2 * math.pi).cos_())


def _hashes(keys: Tensor, number: int) -> Tensor:
    places = torch.arange(1, number + 1, device=keys.device)
    return _mixed(keys[:, None] + places * GOLDEN)


def _unit(hashes: Tensor, skip: int) -> Tensor:
    """The bits after the highest `skip` ones, as a number in (0, 1)."""
    part = _shifted(hashes, 64 - BITS - skip) & ((1 << BITS) - 1)
    return part.float().add_(0.5).mul_(2.0**-BITS)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills with zeros, where that of signed integers fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
