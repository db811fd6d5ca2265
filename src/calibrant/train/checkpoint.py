"""What a run is between two epochs: enough to go on to the same bits, in one file that is whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.core.place import Place
from calibrant.core.tensor_file import load_tensors, save_tensors

NAME = "checkpoint.safetensors"


@dataclass(eq=False)
class Progress:
    """The epoch that is done, its history, and the best epoch so far with its score."""

    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float | None = None


def save(directory: Path, run_id: str, progress: Progress, live: Mapping[str, Tensor]) -> None:
    """Write the checkpoint of a run; `live` are the tensors that training changes, by name."""
    meta = {
        "run": run_id,
        "epoch": progress.epoch,
        "history": progress.history,
        "best_epoch": progress.best_epoch,
        "best_score": progress.best_score,
    }
    save_tensors(directory / NAME, "checkpoint", live, meta)


def restore(directory: Path, run_id: str, live: Mapping[str, Tensor]) -> Progress:
    """Bring the live tensors to what the checkpoint holds, in place; a fresh start where there is none."""
    path = directory / NAME
    if not path.exists():
        return Progress()
    tensors, meta = load_tensors(path, "checkpoint")
    if meta["run"] != run_id:
        Place(str(path)).refuse("it belongs to another run; train into another directory")
    wrong = sorted(set(tensors) ^ set(live)) or [n for n in live if live[n].shape != tensors[n].shape]
    if wrong:
        Place(str(path)).refuse(
            f"{wrong[0]} does not fit this run's network; was the model's code changed? Train into another directory"
        )
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(tensors[name])
    return Progress(meta["epoch"], meta["history"], meta["best_epoch"], meta["best_score"])


def remove(directory: Path) -> None:
    """Forget the checkpoint of a run that is done."""
    (directory / NAME).unlink(missing_ok=True)
