"""Is one model better calibrated than another? The paired difference of every metric on the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calibrant.core.binning import Float64
from calibrant.core.contracts import Better, Interval, html_table
from calibrant.core.errors import InputError
from calibrant.core.predictions import Predictions, TopLabel
from calibrant.metrics.evaluate import evaluate, named
from calibrant.metrics.metric import Metric

RESAMPLES = 1000
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
    reason: str | None = None

    @property
    def value(self) -> float:
        return self.b - self.a

    def row(self) -> list[str]:
        """Cells for a table, as fractions."""
        if self.reason is not None or self.ci is None or self.p is None:
            return [self.spec, "n/a", "", self.reason or "", "", ""]
        interval = f"[{self.ci[0]:+.4f}, {self.ci[1]:+.4f}]"
        return [self.spec, f"{self.a:.4f}", f"{self.b:.4f}", f"{self.value:+.4f}", interval, f"{self.p:.3g}"]

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


COMPARISON_HEAD = ["metric", "A", "B", "B - A", "95 % interval", "p"]


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

    def _repr_html_(self) -> str:
        return html_table(COMPARISON_HEAD, [[s, *found.row()[1:]] for s, found in self.differences.items()])


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
        if spec not in drawn:
            reason = one.reason or two.reason
            out[spec] = Difference(one.spec, one.better, one.value, two.value, None, None, reason)
            continue
        ci, p = centred_interval(two.value - one.value, drawn[spec])
        out[spec] = Difference(one.spec, one.better, one.value, two.value, ci, p)
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
