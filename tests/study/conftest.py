"""A study that takes a second, an executor without processes, and a digest of all that a study says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from calibrant.study.executor import Event
from calibrant.study.work import Task, perform, sentence

TOY = """
question = "Which of two losses?"
document = "002"
reference = "ce"
metrics = ["error", "nll", "ece(bins=15)"]

[run]
data = "synthetic(classes=3, train=320, test=200)"
model = "mlp(width=4)"
recipe = "short"
epochs = 3
batch = 32

[axes.loss]
ce = "ce"
focal = "focal(gamma=3)"

[calibrators]
raw = "identity"
temperature = "temperature"

[scale.tiny]
seeds = 2
note = "toy"

[scale.full]
seeds = 3
paper = true

[[claim]]
id = "one"
says = "focal is better after temperature scaling"
judge = "ece after temperature: focal < ce"

[[published]]
place = "Table 1"
row = "ECE"
quantity = "ece raw"
unit = "%"
values = { ce = [3.03, 0.16], focal = 1.01 }
"""

ANSWERS = ("results.csv", "tables.md", "tables.tex", "answer.json")


@dataclass
class Inline:
    """Tasks one after another in this process; it counts them."""

    tasks: dict[str, Task] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)

    def submit(self, key: str, task: Task) -> None:
        self.tasks[key] = task

    def events(self) -> Iterator[Event]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for key, task in self.tasks.items():
                self.begun.append(key)
                try:
                    records = perform(task, "cpu")
                except Exception as error:
                    yield Event(key, error=sentence(error))
                else:
                    yield Event(key, records=records)
        finally:
            torch.set_num_threads(threads)

    def cancel(self) -> None:
        self.tasks.clear()


def digest(out: Path) -> str:
    """The names and bytes of everything that a study says: cells and answers, and no file of any other kind."""
    files = sorted([*(out / "cells").iterdir(), *(out / name for name in ANSWERS), out / "about.json"])
    state = hashlib.sha256()
    for path in files:
        state.update(f"{path.relative_to(out)}\n".encode() + path.read_bytes())
    return state.hexdigest()


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(TOY, encoding="utf-8")
    return path
