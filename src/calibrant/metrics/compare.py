"""Is one model better calibrated than another? The paired difference of every metric on the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrant.core.binning import Float64
from calibrant.core.contracts import Better, Interval
from calibrant.core.display import COMPARISON_HEAD, Unit, html_table, interval, notes, number, p_value
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.predictions import Predictions, TopLabel
from calibrant.metrics.evaluate import evaluate, named
from calibrant.metrics.metric import Metric

RESAMPLES = 1000
LEAST_ROWS = 20
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Difference:
    """Metric of B minus metric of A, with a paired 95 % bootstrap interval and a two-sided p."""

    spec: str
    better: Better
    a: float
    b: float
    ci: Interval | None
    p: float | None
    unit: Unit = "%"
    resamples: int = RESAMPLES
    reason: str | None = None

    @property
    def value(self) -> float:
        return self.b - self.a

    def cells(self, name: str | None = None) -> list[str]:
        """A row of a table, in percent where it is a share."""
        if self.reason is not None or self.ci is None or self.p is None:
            return [name or self.spec, "n/a", "", "", "", ""]
        unit = self.unit
        return [
            name or self.spec,
            number(self.a, unit),
            number(self.b, unit),
            number(self.value, unit, signed=True, bare=True),
            interval(self.ci, unit, signed=True),
            p_value(self.p, self.resamples),
        ]

    @property
    def improves(self) -> bool | None:
        """Whether B is better than A; None where the difference could be chance (p at least 0.05)."""
        if self.p is None or self.p >= 0.05:
            return None
        if self.better == "zero":
            return abs(self.b) < abs(self.a)
        return (self.b < self.a) == (self.better == "lower")

    def to_json(self) -> dict[str, Any]:
        """One metric of the JSON document of `calibrant compare`."""
        if self.reason is not None or self.ci is None:
            return {"canonical": self.spec, "difference": None, "reason": self.reason}
        return {
            "canonical": self.spec,
            "a": self.a,
            "b": self.b,
            "difference": self.value,
            "ci": list(self.ci),
            "p": self.p,
        }


@dataclass(frozen=True)
class Comparison(Mapping[str, Difference]):
    """A mapping from spec to Difference; a table in a notebook."""

    n: int
    a: str
    b: str
    resamples: int
    differences: Mapping[str, Difference]

    def __getitem__(self, spec: str) -> Difference:
        return self.differences[spec]

    def __iter__(self) -> Iterator[str]:
        return iter(self.differences)

    def __len__(self) -> int:
        return len(self.differences)

    def to_json(self) -> dict[str, Any]:
        """The document that `calibrant compare --json` prints."""
        metrics = {spec: found.to_json() for spec, found in self.differences.items()}
        return {"n": self.n, "a": self.a, "b": self.b, "resamples": self.resamples, "metrics": metrics}

    @property
    def verdict(self) -> str:
        """One sentence: in what B is better and in what it is worse, as far as p < 0.05 says so."""
        better = [spec for spec, found in self.items() if found.improves]
        worse = [spec for spec, found in self.items() if found.improves is False]
        parts = [
            f"{word} in {', '.join(names)}" for word, names in (("better", better), ("worse", worse)) if names
        ]
        return f"B is {' and '.join(parts)} (p < 0.05 each)" if parts else "no difference to be seen"

    @property
    def notes(self) -> list[str]:
        """Why metrics have no difference, one line for each reason."""
        return notes((spec, found.reason) for spec, found in self.items() if found.reason is not None)

    def _repr_html_(self) -> str:
        rows = [found.cells(spec) for spec, found in self.differences.items()]
        return html_table(COMPARISON_HEAD, rows, [*self.notes, self.verdict])


def compare(
    a: Predictions | TopLabel,
    b: Predictions | TopLabel,
    metrics: Sequence[str | Metric] | str | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Pair two models on the same rows and resample the rows, the same ones for both.

    The interval is the difference minus the centred quantiles of its bootstrap distribution: resampling adds the
    same upward bias to both calibration errors, and centring takes out what does not cancel. `progress(done, all)`
    is called now and then. Labels, and ids where both have them, must agree.
    """
    check_pair(a, b)
    if resamples < 100:
        raise CalibrantError(f"resamples must be at least 100, not {resamples}")
    first, second = evaluate(a, metrics, seed=seed), evaluate(b, metrics, seed=seed)
    pieces = named(metrics)
    usable = [s for s in first if math.isfinite(first[s].value) and math.isfinite(second[s].value)]
    drawn: dict[str, Float64] = {spec: np.full(resamples, np.nan) for spec in usable}
    rng = np.random.default_rng(seed)
    done, step = 0, max(1, min(200, _CHUNK // first.n))
    while done < resamples:
        size = min(step, resamples - done)
        rows = rng.integers(0, first.n, (size, first.n))
        counts = np.stack([np.bincount(row, minlength=first.n) for row in rows]).astype(np.float64)
        for spec in usable:
            piece = pieces[spec]
            drawn[spec][done : done + size] = piece.resampled(second.scores, counts) - piece.resampled(
                first.scores, counts
            )
        done += size
        if progress is not None:
            progress(done, resamples)
    out = {}
    for spec in first:
        one, two = first[spec], second[spec]
        about = (one.spec, one.better, one.value, two.value)
        reason = one.reason or two.reason
        if reason is None and first.n < LEAST_ROWS:
            reason = f"{first.n} rows are too few for a bootstrap; it takes {LEAST_ROWS}"
        elif reason is None and np.isfinite(drawn[spec]).mean() < 0.9:
            reason = "most resamples of so few right or wrong answers have no value"
        if reason is not None:
            out[spec] = Difference(*about, None, None, one.unit, resamples, reason)
            continue
        ci, p = centred_interval(two.value - one.value, drawn[spec])
        out[spec] = Difference(*about, ci, p, one.unit, resamples)
    return Comparison(first.n, first.source, second.source, resamples, out)


def centred_interval(difference: float, drawn: Float64) -> tuple[Interval, float]:
    """95 % interval and two-sided p of a difference from its bootstrap draws, centred on their own mean."""
    spread = drawn[np.isfinite(drawn)]
    spread = spread - spread.mean()
    low, high = np.quantile(spread, [0.025, 0.975])
    extreme = int((np.abs(spread) >= abs(difference) * (1 - 1e-12)).sum())
    return (difference - float(high), difference - float(low)), (1 + extreme) / (1 + len(spread))


def check_pair(a: Predictions | TopLabel, b: Predictions | TopLabel) -> None:
    """Two sets of predictions can be paired only on the same rows in the same order."""
    where = f"{a.source} and {b.source}"
    if a.n != b.n:
        raise InputError(f"{where} have {a.n:,} and {b.n:,} rows; a paired comparison needs the same rows")
    if a.ids is not None and b.ids is not None and not np.array_equal(a.ids, b.ids):
        row = int(np.flatnonzero(np.asarray(a.ids) != np.asarray(b.ids))[0])
        raise InputError(
            f"{where} differ in their ids from row {row} on; give both in the same order of the same rows"
        )
    if isinstance(a, Predictions) and isinstance(b, Predictions):
        if a.classes != b.classes:
            raise InputError(
                f"{where} have {a.classes} and {b.classes} classes; they answer different questions"
            )
        unequal = torch.nonzero(a.labels.cpu() != b.labels.cpu())[:, 0]
        if len(unequal):
            row = int(unequal[0])
            raise InputError(
                f"{where} have different labels, first in row {row} ({int(a.labels[row])} and {int(b.labels[row])}); "
                "a paired comparison needs the same rows in the same order"
            )
    elif isinstance(a, Predictions) != isinstance(b, Predictions):
        raise InputError(
            f"{where} are of different kinds: one holds logits, the other (confidence, correct) pairs"
        )
