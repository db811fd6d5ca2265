"""The loop: one for every loss, network and dataset.

with claimed(directory): open a session, restore it, and for each epoch
    draw the epoch -> steps on the device -> predict val and test -> history -> checkpoint
then predictions, weights, DONE
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.predictions import Predictions
from calibrant.core.samples import Model, Samples
from calibrant.train import checkpoint, directory
from calibrant.train.checkpoint import Progress
from calibrant.train.feed import epoch_seed
from calibrant.train.learner import Features, head_of
from calibrant.train.measure import epoch_measures, predict
from calibrant.train.outcome import finish
from calibrant.train.parallel import World, joined, own_device
from calibrant.train.reporting import Report, Teller
from calibrant.train.run import Run
from calibrant.train.session import Session, adapt, open_session
from calibrant.train.step import Engine, chosen, executed

SHARE = 0.1
"""Of the time, at most this much goes into checkpoints."""

_REFUSED = 2
"""What the first of several processes says to the others if the directory is not for this run."""


@dataclass(frozen=True)
class Trained:
    """A run that is done: its directory, its history and the predictions that it ended with."""

    run: Run
    directory: Path
    history: list[dict[str, Any]]

    @property
    def val(self) -> Predictions:
        """Predictions for the validation set: fit calibrators to these."""
        return Predictions.load(self.directory / "predictions" / "val.npz")

    @property
    def test(self) -> Predictions:
        """Predictions for the test set: score these."""
        return Predictions.load(self.directory / "predictions" / "test.npz")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the predictions on disk come to: those of the chosen epoch, in float32, raw and after temperature."""
        val, test = self.val, self.test
        return {
            "epochs": len(self.history),
            "epoch": test.meta["epoch"],
            "seconds": sum(line["seconds"] + line["eval_seconds"] for line in self.history),
            **epoch_measures((val.logits, val.labels), (test.logits, test.labels)),
        }


def train(
    run: Run,
    out: Path | str | None = None,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    resume: bool = False,
    model: Model | None = None,
    engine: Engine = "auto",
    report: Callable[[Report], None] | None = None,
) -> Trained:
    """Train a run into a directory (`runs/ID` by default); a run that is done already is only read.

    `model` stands in for a network that the run names by a path to the user's own code. `engine` says how steps are
    executed, which changes results only by rounding.
    """
    place = own_device(pick_device(device))
    where = Path(out) if out is not None else Path("runs") / run.id
    with joined(place) as world, _global_state(place), ExitStack() as held:
        done = False
        if world.first:
            try:
                done = held.enter_context(directory.claimed(where, run, resume=resume))
            except CalibrantError:
                world.agreed(_REFUSED)
                raise
        told = world.agreed(int(done))
        if told == _REFUSED:
            raise CalibrantError("the first process could not begin; see what it says")
        if not told:
            _train(run, where, data_dir, place, model, engine, report, world)
    return Trained(run, where, directory.read_history(where))


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one; a GPU that is asked for and is not there is refused."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"there is no device {name!r}; there is auto, cpu, cuda, cuda:1 ...") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"training runs on cpu and cuda, not on {name}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "no GPU can be used here (torch finds none); leave out --device, or give --device cpu"
        )
    return device


@contextmanager
def _global_state(device: torch.device) -> Iterator[None]:
    """Settings of torch that are as training wants them inside, and as they were outside."""
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            torch.backends.cudnn.benchmark = device.type == "cuda"
            yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
            torch.set_float32_matmul_precision(precision)


def _train(
    run: Run,
    where: Path,
    data_dir: Path | None,
    device: torch.device,
    model: Model | None,
    engine: Engine,
    report: Callable[[Report], None] | None,
    world: World,
) -> None:
    """From data to DONE; only the first of several processes writes."""
    published = run.dataset.load(data_dir)
    mirrored = bool(getattr(run.dataset, "mirrored", True))
    session = open_session(run, published, model or run.network, device, world, mirrored=mirrored)
    how = chosen(engine, device, run.recipe.epochs * session.steps, world)
    progress = checkpoint.restore(where, run.id, session.live())
    world.wait()
    if world.first:
        directory.write_json(
            where / "env.json",
            directory.environment(device, engine=how, bf16=session.step.half, processes=world.size),
        )
        directory.write_history(where, progress.history)
    work = executed(session.step, how)
    saver = _Saver(where, run.id)
    for epoch in range(progress.epoch + 1, run.recipe.epochs + 1):
        teller = Teller(run, progress, epoch, session.steps, report if world.first else None)
        line = _epoch(session, work, epoch, teller)
        _finish_epoch(session, progress, epoch, line, where)
        if world.first:
            directory.add_history(where, line)
            saver(progress, session)
        teller.finished(line)
    if world.first:
        finish(session, progress, where)


def _epoch(session: Session, work: Callable[[], None], epoch: int, teller: Teller) -> dict[str, Any]:
    """Train one epoch, counted from 1; what it cost."""
    step, tally, seed = session.step, session.step.tally, session.run.seed
    began = time.perf_counter()
    steps = step.feed.begin(seed, epoch, session.kept.nonzero()[:, 0])
    if not steps:
        raise InputError(
            f"pruning has left {int(session.kept.sum())} rows, fewer than one batch of {step.feed.batch}; prune less"
        )
    if step.learner is not None:
        step.learner.begin(seed, epoch, steps)
    teller.steps = steps
    teller.within(0, None)
    rates = [session.run.recipe.rate(epoch - 1, number, steps) for number in range(steps)]
    step.rates[:steps].copy_(torch.tensor(rates))
    torch.manual_seed(epoch_seed(seed, epoch, "dropout"))
    tally.begin(epoch)
    session.network.train()
    told = time.perf_counter()
    for number in range(steps):
        work()
        if time.perf_counter() - told > 1:
            teller.within(number + 1, float(tally.loss) / (number + 1))
            told = time.perf_counter()
    loss = float(tally.loss) / steps
    learned = {} if step.learner is None else {"meta_loss": float(step.learner.value) / steps}
    return {
        **learned,
        "epoch": epoch,
        "lr": rates[-1],
        "rows": steps * step.feed.batch,
        "seconds": time.perf_counter() - began,
        "train_loss": loss,
        "train_error": int(tally.wrong) / (steps * step.feed.batch),
    }


def _finish_epoch(
    session: Session, progress: Progress, epoch: int, line: dict[str, Any], where: Path
) -> None:
    """Measure the epoch, let adaptive losses and pruning look at it, and remember it where it is the best."""
    began = time.perf_counter()
    kept = where / checkpoint.NAME
    last = f"the checkpoint in {kept} is the last good one" if kept.exists() else "there is no checkpoint yet"
    if not math.isfinite(line["train_loss"]):
        raise CalibrantError(
            f"the loss became {line['train_loss']} in epoch {epoch}; {last}; lower the learning rate"
        )
    (val, told), (test, own) = (look(session, part) for part in (session.splits.val, session.splits.test))
    line |= {f"val_{name}": value for name, value in told.items()} | own
    if not bool(torch.isfinite(val).all() and torch.isfinite(test).all()):
        raise CalibrantError(
            f"the logits became infinite or NaN in epoch {epoch}; {last}; lower the learning rate"
        )
    line |= epoch_measures((val, session.splits.val.labels), (test, session.splits.test.labels))
    if session.objective.adaptive:
        adapt(
            session.step.state, session.objective.update(session.step.state, val, session.splits.val.labels)
        )
    if session.pruning is not None and session.pruning.due(epoch):
        _prune(session)
    select = session.run.recipe.select
    if select != "last":
        score = line[f"val_{select}"]
        score = math.inf if score is None else score
        if progress.best_score is None or score < progress.best_score:
            progress.best_epoch, progress.best_score = epoch, score
            for name, value in session.predictor.state_dict().items():
                session.best[name].copy_(value)
    line["eval_seconds"] = time.perf_counter() - began
    progress.epoch = epoch
    progress.history.append(line)


def look(session: Session, part: Samples) -> tuple[Tensor, dict[str, float]]:
    """The logits of a part, and what a meta-regulariser says of its rows, such as the mean of gamma."""
    network, prepared, half = session.predictor, session.preparation, session.step.half
    learner = session.step.learner
    if learner is None:
        return predict(network, prepared, part, half=half), {}
    features = predict(Features(network), prepared, part, half=half)
    with torch.no_grad():
        return head_of(network)(features), learner.meta.report(learner.phi, features)


def _prune(session: Session) -> None:
    """Drop training rows of low confidence, of those that are still there."""
    assert session.pruning is not None
    rows = session.kept.nonzero()[:, 0]
    part = session.splits.train.take(rows.to(session.splits.train.labels.device))
    logits = predict(session.predictor, session.preparation, part, half=session.step.half)
    stays = session.pruning.keep(rows, logits.softmax(1).amax(1).cpu())
    session.kept.zero_()
    session.kept[stays] = True


class _Saver:
    """Writes checkpoints, so seldom that they take at most their share of the time."""

    def __init__(self, where: Path, run_id: str) -> None:
        self.where, self.run_id = where, run_id
        self.next = 0.0

    def __call__(self, progress: Progress, session: Session) -> None:
        began = time.perf_counter()
        if began < self.next or progress.epoch == session.run.recipe.epochs:
            return
        checkpoint.save(self.where, self.run_id, progress, session.live())
        ended = time.perf_counter()
        self.next = ended + (1 / SHARE - 1) * (ended - began)
