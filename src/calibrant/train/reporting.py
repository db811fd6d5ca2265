"""Where a run stands, for a progress bar or a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from calibrant.train.checkpoint import Progress
from calibrant.train.run import Run


@dataclass(frozen=True)
class Report:
    """Where a run stands: what a progress bar shows."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None
    rows_per_second: float
    seconds_left: float
    line: dict[str, Any] | None
    """The history of the last epoch that is done."""


def teller(
    run: Run, progress: Progress, epoch: int, report: Callable[[Report], None] | None
) -> Callable[[int, int, float | None], None]:
    """Reports of one epoch: rows a second and the time left by the epochs that are done, or by this one's steps."""
    began = time.perf_counter()
    last = progress.history[-1] if progress.history else None

    def tell(step: int, steps: int, loss: float | None) -> None:
        if report is None:
            return
        taken = time.perf_counter() - began
        pace = taken / max(step, 1) * steps
        done = [line["seconds"] + line["eval_seconds"] for line in progress.history[-5:]]
        each = sum(done) / len(done) if done else pace
        left = (run.recipe.epochs - epoch) * each + max(each - taken, 0)
        speed = step * run.recipe.batch / max(taken, 1e-9)
        report(Report(epoch, run.recipe.epochs, step, steps, loss, speed, left, last))

    tell(0, 1, None)
    return tell
