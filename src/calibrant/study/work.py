"""What a worker does: train a run, or read one that is done, and measure its predictions after each calibrator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from calibrant.calibrators.calibrate import calibrate
from calibrant.core.calibration import CalibrationWarning
from calibrant.core.errors import CalibrantError
from calibrant.core.predictions import Predictions
from calibrant.metrics.evaluate import metric
from calibrant.metrics.metric import estimates
from calibrant.metrics.scores import Scores
from calibrant.study.plan import SWING
from calibrant.study.statistics import summary
from calibrant.study.store import Record
from calibrant.train.loop import Trained, train
from calibrant.train.reporting import Report
from calibrant.train.run import Run


@dataclass(frozen=True)
class Task:
    """A run and the calibrators that are wanted of it, each with the name of its cell."""

    run: Run
    directory: Path
    data_dir: Path | None
    calibrators: tuple[tuple[str, str], ...]
    metrics: tuple[str, ...]


def perform(task: Task, device: str, report: Callable[[Report], None] | None = None) -> dict[str, Record]:
    """The records of a task by cell. A run that fails raises; a calibrator that fails is a record that says so."""
    trained = train(
        task.run, task.directory, data_dir=task.data_dir, device=device, resume=True, report=report
    )
    val, test = trained.val, trained.test
    found = {}
    for key, spec in task.calibrators:
        try:
            found[key] = _record(trained, val, test, spec, task.metrics)
        except Exception as error:  # one cell must not take the others with it
            found[key] = failed(error)
    return found


def failed(error: BaseException | str) -> Record:
    """The record of a cell that has no numbers."""
    return Record({}, {}, None, (), error if isinstance(error, str) else sentence(error))


def sentence(error: BaseException) -> str:
    """An error as one line; one that is not ours is called by its type, which a reader can look up."""
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, CalibrantError) else f"{type(error).__name__}: {text}"


def _record(
    trained: Trained, val: Predictions, test: Predictions, spec: str, metrics: tuple[str, ...]
) -> Record:
    """The numbers of one calibrator: metrics on test, and the numbers that it learned on val."""
    values: dict[str, float | None] = {}
    notes: tuple[str, ...] = ()
    made = test
    if spec == "identity":
        values[SWING] = _swing(trained.history)
    else:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", CalibrationWarning)
            done = calibrate(val, test, spec)
        made = done.predictions
        notes = tuple(dict.fromkeys(str(each.message) for each in told))
        for name, tensor in done.fitted.state.items():
            if tensor.ndim == 0:
                values[name] = float(tensor)
    reasons = {}
    for name, each in zip(metrics, estimates([metric(m) for m in metrics], Scores(made)), strict=True):
        values[name] = each.value if math.isfinite(each.value) else None
        if each.reason is not None:
            reasons[name] = each.reason
    return Record(values, reasons, made.sha256, notes)


def _swing(history: list[dict[str, Any]]) -> float | None:
    """The standard deviation of the steps of test ECE between epochs; None for fewer than three epochs."""
    curve = [line["test_ece"] for line in history]
    if len(curve) < 3 or None in curve:
        return None
    return summary([after - before for before, after in pairwise(curve)]).sd
