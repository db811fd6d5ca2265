"""How long a study will take here: a few steps of each kind of run are timed, and multiplied.

One thread is used, as in a worker. What is estimated is the training and the predictions of each epoch; a number that
is right within a factor of two says what one wants to know: minutes, hours or days.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from calibrant.train.loop import pick_device
from calibrant.train.measure import predict
from calibrant.train.parallel import World
from calibrant.train.run import Run
from calibrant.train.session import Session, open_session

ROWS = 64
"""Rows of a timed step on a CPU, where time is proportional to rows; a GPU is given the whole batch."""


@dataclass(frozen=True)
class Pace:
    """Seconds that a row costs in training and in prediction, and the rows of an epoch."""

    trained: float
    predicted: float
    rows: int
    shown: int

    def seconds(self, epochs: int) -> float:
        """Of a whole run."""
        return epochs * (self.rows * self.trained + self.shown * self.predicted)


def estimate(runs: Iterable[Run], data_dir: Path | None = None, device: str = "auto") -> float:
    """Seconds that all of these runs take one after another."""
    known: dict[str, Pace] = {}
    total = 0.0
    for run in runs:
        recipe = replace(run.recipe, epochs=1, drops=(), warmup=0)
        kind = replace(run, recipe=recipe, seed=0)
        if kind.id not in known:
            known[kind.id] = _pace(kind, data_dir, device)
        total += known[kind.id].seconds(run.recipe.epochs)
    return total


def _pace(run: Run, data_dir: Path | None, device: str) -> Pace:
    place = pick_device(device)
    batch = run.recipe.batch if place.type == "cuda" else min(ROWS, run.recipe.batch)
    smaller = replace(run, recipe=replace(run.recipe, batch=batch))
    published = run.dataset.load(data_dir)
    mirrored = bool(getattr(run.dataset, "mirrored", True))
    with _one_thread(), torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        session = open_session(smaller, published, run.network, place, World(), mirrored=mirrored)
        session.step.feed.begin(0, 1)
        session.step.tally.begin(1)
        session.network.train()
        seconds = min(_timed(session) for _ in range(3))
        part = session.splits.test.take(torch.arange(min(len(session.splits.test), 4 * ROWS)).to(place))
        began = time.perf_counter()
        predict(session.predictor, session.preparation, part, half=session.step.half)
        shown = (time.perf_counter() - began) / len(part)
    return Pace(seconds / batch, shown, *_rows(session, run.recipe.batch))


def _timed(session: Session) -> float:
    """One step, waited for."""
    session.step.tally.step.zero_()
    began = time.perf_counter()
    session.step()
    float(session.step.tally.loss)
    return time.perf_counter() - began


def _rows(session: Session, batch: int) -> tuple[int, int]:
    """Rows that an epoch trains on, in whole batches, and rows that it predicts."""
    splits = session.splits
    return len(splits.train) // batch * batch, len(splits.val) + len(splits.test)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
