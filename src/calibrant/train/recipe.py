"""How weights are moved: the optimiser, its schedule, the views of images, and which epoch is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from calibrant.core.errors import SpecError, nearest

Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["step", "cosine"]
Selection = Literal["last", "error", "nll", "brier"]
Precision = Literal["auto", "bf16", "float32"]
Flip = Literal["none", "random", "alternating"]


@dataclass(frozen=True)
class Recipe:
    """Everything about training that is neither data, network nor loss.

    `step` divides the learning rate by ten after each epoch of `drops`; `cosine` takes it to 0. Both rise linearly over
    the first `warmup` epochs. Images are moved by up to `crop` pixels, and mirrored by chance, or "alternating": of two
    epochs each shows another side (Jordan 2024). `average` is the decay of a running mean of the weights, which then
    predicts in their place; `clip` bounds the gradient's norm; 0 turns either off. `select` names what chooses the
    epoch on val. Precision "auto" is bfloat16 for convolutions and products on a GPU, float32 on a CPU.
    """

    epochs: int
    batch: int = 128
    optimizer: Optimizer = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Schedule = "step"
    drops: tuple[int, ...] = ()
    warmup: int = 0
    clip: float = 0.0
    crop: int = 4
    flip: Flip = "random"
    average: float = 0.0
    select: Selection = "last"
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name in (
            "lr",
            "momentum",
            "weight_decay",
            "clip",
            "average",
        ):  # 1 and 1.0 are one recipe, with one hash
            object.__setattr__(self, name, float(getattr(self, name)))
        wrong = [name for name, fine in self._checks() if not fine]
        if wrong:
            name = wrong[0]
            raise SpecError(f"{name}={getattr(self, name)!r} is not possible in a recipe; {_ADVICE[name]}")

    def _checks(self) -> list[tuple[str, bool]]:
        return [
            ("epochs", self.epochs >= 1),
            ("batch", self.batch >= 1),
            ("optimizer", self.optimizer in ("sgd", "adamw")),
            ("lr", 0 < self.lr < math.inf),
            ("momentum", 0 <= self.momentum < 1),
            ("nesterov", not self.nesterov or self.momentum > 0),
            ("weight_decay", 0 <= self.weight_decay < math.inf),
            ("schedule", self.schedule in ("step", "cosine")),
            ("drops", all(d > 0 for d in self.drops) and list(self.drops) == sorted(set(self.drops))),
            ("warmup", self.warmup >= 0),
            ("clip", 0 <= self.clip < math.inf),
            ("crop", self.crop >= 0),
            ("flip", self.flip in ("none", "random", "alternating")),
            ("average", 0 <= self.average < 1),
            ("select", self.select in ("last", "error", "nll", "brier")),
            ("precision", self.precision in ("auto", "bf16", "float32")),
        ]

    def lasting(self, epochs: int) -> Recipe:
        """The recipe over another number of epochs, its drops and its warm-up moved in proportion."""
        if epochs < 1:
            return replace(self, epochs=epochs)  # which says what is wrong
        share = epochs / self.epochs
        drops = tuple(sorted({max(1, round(drop * share)) for drop in self.drops}))
        return replace(self, epochs=epochs, drops=drops, warmup=min(round(self.warmup * share), epochs - 1))

    def rate(self, epoch: int, step: int, steps: int) -> float:
        """The learning rate of a step, both counted from 0."""
        at = epoch + step / steps
        rise = min(1.0, (at + 1 / steps) / self.warmup) if self.warmup else 1.0
        if self.schedule == "step":
            return self.lr * rise * 0.1 ** sum(epoch >= drop for drop in self.drops)
        fall = max(0.0, (at - self.warmup) / max(self.epochs - self.warmup, 1))
        return self.lr * rise * 0.5 * (1 + math.cos(math.pi * fall))


_ADVICE = {
    "epochs": "at least 1 epoch is needed",
    "batch": "at least 1 row is needed",
    "optimizer": "there is sgd, adamw",
    "lr": "it is a positive number",
    "momentum": "it lies in [0, 1)",
    "nesterov": "it needs a momentum above 0",
    "weight_decay": "it is a number of at least 0",
    "schedule": "there is step, cosine",
    "drops": "they are rising epochs such as (150, 250)",
    "warmup": "it is a number of epochs",
    "clip": "it is a number of at least 0",
    "crop": "it is a number of pixels",
    "flip": "there is none, random, alternating",
    "average": "it lies in [0, 1)",
    "select": "there is last, error, nll, brier",
    "precision": "there is auto, bf16, float32",
}

RECIPES: dict[str, tuple[str, Recipe]] = {
    "sgd350": (
        "document 000: 350 epochs, drops at 150 and 250, batch 128, weight decay 5e-4",
        Recipe(epochs=350, drops=(150, 250)),
    ),
    "sgd200": (
        "document 002: 200 epochs, drops at 100 and 150, batch 512, weight decay 1e-4",
        Recipe(epochs=200, batch=512, weight_decay=1e-4, drops=(100, 150)),
    ),
    "short": (
        "35 epochs, cosine with warm-up, Nesterov momentum: a tenth of sgd350",
        Recipe(epochs=35, schedule="cosine", warmup=3, nesterov=True),
    ),
    "text": (
        "AdamW for networks that read texts: 10 epochs, cosine with warm-up",
        Recipe(
            epochs=10, batch=64, optimizer="adamw", lr=5e-3, weight_decay=0.05, schedule="cosine", warmup=1
        ),
    ),
}
"""Recipes by name, each with what it is."""


def recipe(name: str = "short", **changes: Any) -> Recipe:
    """A named recipe with changes; other `epochs` move its drops and warm-up in proportion."""
    if name not in RECIPES:
        raise SpecError(f"no recipe {name!r}{nearest(name, RECIPES)}")
    known = {f.name for f in fields(Recipe)}
    for key in changes:
        if key not in known:
            raise SpecError(f"a recipe has no {key!r}{nearest(key, known)}")
    found = RECIPES[name][1]
    return replace(found.lasting(changes.get("epochs", found.epochs)), **changes)
