"""What a metric is: a value from shared scores, and, where they exist, an interval and a null."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from calibrant.core.binning import Float64
from calibrant.core.contracts import ArrayLike, Better, Estimate, Interval, Null
from calibrant.core.display import Unit
from calibrant.core.errors import CalibrantError
from calibrant.core.predictions import Predictions
from calibrant.core.spec import canonical
from calibrant.metrics.scores import Scores


class NotApplicable(CalibrantError):
    """The metric has no value on these predictions; the message is the reason that a reader sees."""


class Metric(ABC):
    """The interface of a metric. A subclass is final: a frozen dataclass of hyper-parameters.

    `population` says what the interval is an interval for; `columns` what `value` reads of the scores, so that
    several metrics share one pass; `scope` whether the full probability vector is needed. A metric has an interval,
    or `no_interval` says why it has none.
    """

    better: ClassVar[Better]
    range: ClassVar[tuple[float, float]]
    population: ClassVar[str]
    scope: ClassVar[Literal["top-label", "full-vector"]] = "top-label"
    columns: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[Unit] = "%"
    no_interval: ClassVar[str | None] = None

    @abstractmethod
    def value(self, scores: Scores) -> float:
        """The metric of these scores, with their weights."""

    def objection(self, scores: Scores) -> str | None:
        """Why there is no interval on these scores; None where there is one."""
        return self.no_interval

    def interval(self, scores: Scores, seed: int) -> Interval | None:
        """A 95 % interval for the population value; asked for only where there is no objection."""
        return None

    def null(self, scores: Scores, seed: int) -> Null | None:
        """The distribution under labels redrawn from the predictions; None for what is no calibration error."""
        return None

    def resampled(self, scores: Scores, counts: Float64) -> Float64:
        """The value under each row of resampling counts [resamples, N]; NaN where it does not exist."""
        out = np.full(len(counts), np.nan)
        for i, weights in enumerate(counts):
            try:
                out[i] = self.value(scores.reweighted(weights))
            except NotApplicable:
                continue
        return out

    def __call__(
        self, logits: ArrayLike, labels: ArrayLike, *, weights: ArrayLike | None = None, seed: int = 0
    ) -> Estimate:
        """The estimate on logits [N, K] and labels [N]."""
        return estimate(self, Scores(Predictions(logits, labels), weights), seed)


def estimate(metric: Metric, scores: Scores, seed: int = 0) -> Estimate:
    """The value now, the interval and the null when they are asked for."""
    spec = canonical(metric)
    reason: str | None = None
    rows: int | None = None
    value = float("nan")
    if metric.scope == "full-vector" and scores.top_label:
        found = "(confidence, correct) predictions" if scores.labels is None else "of a top-label calibrator"
        reason = f"needs the full probability vector, and these are {found}"
    else:
        try:
            value = metric.value(scores)
        except NotApplicable as error:
            reason = str(error)
    if np.isinf(value):
        rows = int(np.isinf(scores.column("nll")).sum())
        some = "1 row" if rows == 1 else f"{rows:,} rows"
        reason = f"infinite: the true class has probability 0 in {some}"
    about = (spec, metric.better, metric.population, metric.unit)
    if not np.isfinite(value):
        return Estimate(value, *about, reason, rows, reason)
    objection = metric.objection(scores)
    return Estimate(
        value,
        *about,
        no_interval=objection,
        _interval=None if objection else partial(metric.interval, scores, seed),
        _null=partial(metric.null, scores, seed),
    )


def estimates(metrics: Iterable[Metric], scores: Scores, seed: int = 0) -> list[Estimate]:
    """Several estimates from one pass over the logits and one set of redraws."""
    chosen = list(metrics)
    scores.prepare({c for m in chosen for c in m.columns if m.scope == "top-label" or not scores.top_label})
    return [estimate(metric, scores, seed) for metric in chosen]
