"""Training data that lives on the device: one epoch's order and views are drawn at once, and a batch is arithmetic.

Every random number of an epoch comes from one CPU generator seeded by (seed, epoch), so that an epoch can be repeated
after a kill, on any device, by any number of processes. The tensors are filled in place, so that a captured step reads
the new epoch from the old addresses.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.core.samples import InputKind, Samples
from calibrant.data.augment import Views, channel_statistics, coins, draw_views, view
from calibrant.losses.mixup import Mixup, Pairing
from calibrant.train.recipe import Flip


def epoch_seed(seed: int, epoch: int, purpose: str) -> int:
    """A seed for one purpose in one epoch: hashed, so that neighbouring seeds share nothing."""
    text = f"{purpose} {seed} {epoch}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


def at(values: Tensor, place: Tensor) -> Tensor:
    """One of many values, by a number on the device; `values[place]` would wait for the number."""
    return values.index_select(0, place.view(1))[0]


@dataclass(frozen=True, eq=False)
class Preparation:
    """From stored inputs to what the network reads: pixels on the scale 0 to 1, minus mean, over standard deviation."""

    kind: InputKind
    mean: Tensor | None = None
    std: Tensor | None = None

    @classmethod
    def fit(cls, kind: InputKind, train: Samples) -> Preparation:
        """The statistics of the training images, on their device; other kinds need none."""
        if kind != "image":
            return cls(kind)
        mean, std = channel_statistics(train.inputs)
        return cls(kind, mean.view(1, -1, 1, 1), std.view(1, -1, 1, 1))

    def __call__(self, inputs: Tensor) -> Tensor:
        if self.mean is None or self.std is None:
            return inputs
        scaled = (inputs.float() / 255 - self.mean) / self.std
        return scaled.contiguous(memory_format=torch.channels_last)

    def tensors(self) -> dict[str, Tensor]:
        """What has to be kept beside the weights."""
        return (
            {} if self.mean is None or self.std is None else {"input.mean": self.mean, "input.std": self.std}
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step reads: prepared inputs, the criterion's target, the true classes, and their rows in train."""

    inputs: Tensor
    target: Tensor
    labels: Tensor
    rows: Tensor


class Feed:
    """The batches of an epoch, by the number of the step; one process of several takes its own part of each batch."""

    def __init__(
        self,
        train: Samples,
        preparation: Preparation,
        batch: int,
        classes: int,
        *,
        crop: int,
        flip: Flip,
        mixup: Mixup | None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.train, self.preparation, self.batch, self.classes = train, preparation, batch, classes
        self.crop, self.flip, self.mixup = crop, flip, mixup
        self.views = preparation.kind == "image" and (crop > 0 or flip != "none")
        device = train.labels.device
        most = max(len(train) // batch, 1)
        self.order = torch.zeros(most * batch, dtype=torch.int64, device=device)
        self.shift = torch.zeros((len(self.order), 2), dtype=torch.int64, device=device)
        self.mirrored = torch.zeros(len(self.order), dtype=torch.bool, device=device)
        self.share = torch.ones(most, dtype=torch.float64, device=device)
        self.partner = torch.zeros(len(self.order), dtype=torch.int64, device=device)
        rank, world = part
        own = batch // world
        self.part = slice(rank * own, (rank + 1) * own)
        self.places = torch.arange(batch, device=device)

    def begin(self, seed: int, epoch: int, kept: Tensor | None = None) -> int:
        """Draw an epoch from the rows that are kept (all by default); the number of whole batches in it."""
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch, "order and views"))
        rows = torch.arange(len(self.train)) if kept is None else kept.cpu()
        order = rows[torch.randperm(len(rows), generator=generator)]
        steps = len(order) // self.batch
        used = steps * self.batch
        self._fill(self.order, order[:used])
        if self.views:
            views = draw_views(used, self.crop, generator)
            self._fill(self.shift, views.shift)
            if self.flip == "random":
                self._fill(self.mirrored, views.mirrored)
            elif self.flip == "alternating":
                self._fill(self.mirrored, self._sides(seed)[order[:used]] ^ bool(epoch % 2))
        if self.mixup is not None:
            pairings = [self.mixup.draw(self.batch, generator) for _ in range(steps)]
            self._fill(self.share, torch.stack([p.share for p in pairings]))
            self._fill(self.partner, torch.cat([p.partner for p in pairings]))
        return steps

    def _sides(self, seed: int) -> Tensor:
        """Which training images are mirrored in even epochs; the others are in odd ones."""
        generator = torch.Generator().manual_seed(epoch_seed(seed, 0, "sides"))
        return coins(len(self.train), generator)

    @staticmethod
    def _fill(buffer: Tensor, values: Tensor) -> None:
        if buffer.device.type == "cuda":
            values = values.pin_memory()
        buffer[: len(values)].copy_(values, non_blocking=True)

    def __call__(self, step: Tensor) -> Batch:
        """The batch of a step, whose number is a tensor, so that nothing waits for the device."""
        places = step * self.batch + self.places
        rows = self.order[places]
        labels = self.train.labels[rows]
        stored = self.train.inputs[rows]
        if self.views:
            stored = view(stored, Views(self.shift[places], self.mirrored[places]))
        inputs, target = self.preparation(stored), labels
        if self.mixup is not None:
            pairing = Pairing(at(self.share, step), self.partner[places])
            soft = F.one_hot(labels, self.classes).float()
            inputs, target = self.mixup.mix(inputs, pairing), self.mixup.mix(soft, pairing)
        return Batch(inputs[self.part], target, labels, rows)
