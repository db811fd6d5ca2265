"""Where a run stands, for a progress bar or a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.train.checkpoint import Progress
from calibrant.train.run import Run


@dataclass(frozen=True)
class Report:
    """Where a run stands: about once a second within an epoch, and when an epoch is done.

    `loss` is the mean of the epoch so far; `line` is the last line of the history, of the epoch before until this one
    is `done`.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None
    rows_per_second: float
    seconds_left: float
    line: Mapping[str, Any] | None
    done: bool = False


class Teller:
    """Reports of one epoch to whoever wants them; the time left by the epochs that are done, or by this one's steps."""

    def __init__(
        self, run: Run, progress: Progress, epoch: int, steps: int, report: Callable[[Report], None] | None
    ) -> None:
        self.run, self.progress, self.epoch, self.steps, self.report = run, progress, epoch, steps, report
        self.began = time.perf_counter()

    def within(self, step: int, loss: float | None) -> None:
        """Some steps of the epoch are done."""
        if self.report is None:
            return
        taken = time.perf_counter() - self.began
        past = [line["seconds"] + line["eval_seconds"] for line in self.progress.history[-5:]]
        each = sum(past) / len(past) if past else taken / max(step, 1) * self.steps
        left = (self.run.recipe.epochs - self.epoch) * each + max(each - taken, 0)
        self._tell(step, loss, step * self.run.recipe.batch / max(taken, 1e-9), left, done=False)

    def finished(self, line: Mapping[str, Any]) -> None:
        """The epoch is trained, measured and part of the history."""
        if self.report is None:
            return
        past = [each["seconds"] + each["eval_seconds"] for each in self.progress.history[-5:]]
        left = (self.run.recipe.epochs - self.epoch) * sum(past) / len(past)
        speed = line["rows"] / max(line["seconds"], 1e-9)
        self._tell(self.steps, line["train_loss"], speed, left, done=True)

    def _tell(self, step: int, loss: float | None, speed: float, left: float, *, done: bool) -> None:
        assert self.report is not None
        last = self.progress.history[-1] if self.progress.history else None
        epochs = self.run.recipe.epochs
        self.report(Report(self.epoch, epochs, step, self.steps, loss, speed, left, last, done))
