"""Can this model's confidence be trusted? Every metric of one set of predictions, and a sentence that answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from calibrant.core.contracts import ArrayLike, Estimate, Null
from calibrant.core.display import ESTIMATE_HEAD, html_table, notes, p_value
from calibrant.core.errors import CalibrantError
from calibrant.core.predictions import Predictions, TopLabel
from calibrant.core.spec import build, canonical, split_specs
from calibrant.metrics.binned import ECE
from calibrant.metrics.metric import Metric, estimate, estimates
from calibrant.metrics.proper import Overconfidence
from calibrant.metrics.scores import Scores

FEW_ROWS = 30
DEFAULT = (
    "error",
    "nll",
    "brier",
    "ece(bins=15)",
    "ace(bins=15)",
    "mce(bins=15)",
    "classwise_ece(bins=15)",
    "debiased_ece(bins=15)",
    "smece",
    "overconfidence",
    "auroc",
)
"""What `evaluate` reports unless told otherwise: never a calibration error alone."""

ORACLE = (
    "oracle: calibrated on what it is scored on, so that this is what a best fit could do, and no evidence"
)


def metric(spec: str) -> Metric:
    """The metric that a spec names: `metric("ece(bins=15)")(logits, labels).value`."""
    return cast(Metric, build(spec, "metrics"))


@dataclass(frozen=True)
class Evaluation(Mapping[str, Estimate]):
    """A mapping from spec to Estimate that also knows what was evaluated; a table in a notebook."""

    n: int
    classes: int | None
    source: str
    estimates: Mapping[str, Estimate]
    scores: Scores = field(repr=False)
    seed: int = 0
    oracle: bool = False

    def __getitem__(self, spec: str) -> Estimate:
        return self.estimates[spec]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    @property
    def verdict(self) -> str:
        """One sentence in plain words about the top label, from `ece(bins=15)`, the signed gap, and their nulls."""
        return _verdict(
            estimate(ECE(), self.scores, self.seed),
            estimate(Overconfidence(), self.scores, self.seed),
            self.n,
        )

    def to_json(self) -> dict[str, Any]:
        """The document that `calibrant evaluate --json` prints: fractions, not percent."""
        return {
            "n": self.n,
            "classes": self.classes,
            "source": self.source,
            "metrics": {spec: estimate_json(found) for spec, found in self.estimates.items()},
            **({"oracle": True} if self.oracle else {}),
        }

    @property
    def notes(self) -> list[str]:
        """Whether the numbers are an oracle's; why metrics have no value or no interval, one line for each reason."""
        missing = [(spec, e.reason) for spec, e in self.items() if e.reason is not None]
        without = [(spec, e.no_interval) for spec, e in self.items() if e.reason is None and e.no_interval]
        told = notes(missing) + [f"no interval for {line}" for line in notes(without)]
        return [ORACLE, *told] if self.oracle else told

    def _repr_html_(self) -> str:
        rows = [found.cells(spec) for spec, found in self.estimates.items()]
        return html_table(ESTIMATE_HEAD, rows, [*self.notes, self.verdict])


def evaluate(
    predictions: Predictions | TopLabel,
    metrics: Sequence[str | Metric] | str | None = None,
    *,
    weights: ArrayLike | None = None,
    seed: int = 0,
) -> Evaluation:
    """Every metric with its interval and null; those two are computed when they are first read.

    `metrics` are spec strings, metric instances or one comma-separated string; the default is DEFAULT. All of them
    share one pass over the logits and one set of redraws, so asking for ten costs little more than asking for one.
    """
    if not isinstance(predictions, Predictions | TopLabel):
        raise CalibrantError(
            f"evaluate takes Predictions or TopLabel, not {type(predictions).__name__}; "
            "write evaluate(Predictions(logits, labels)) or evaluate(Predictions.load(path))"
        )
    check_seed(seed)
    chosen = named(metrics)
    scores = Scores(predictions, weights)
    found = estimates(chosen.values(), scores, seed)
    return Evaluation(
        scores.n,
        scores.classes,
        str(predictions.source),
        dict(zip(chosen, found, strict=True)),
        scores,
        seed,
        predictions.meta.get("oracle") is True,
    )


def estimate_json(found: Estimate) -> dict[str, Any]:
    """One metric of the JSON document; a value that does not exist is null with its reason."""
    if not math.isfinite(found.value):
        out: dict[str, Any] = {"canonical": found.spec, "value": None, "reason": found.reason}
        if found.rows is not None:
            out["rows"] = found.rows
        return out
    null = found.null
    return {
        "canonical": found.spec,
        "value": found.value,
        "ci": None if found.ci is None else list(found.ci),
        "null": None if null is None else {"mean": null.mean, "q95": null.q95, "p": null.p},
    }


def check_seed(seed: int) -> None:
    """Refuse a seed that numpy would."""
    if seed < 0:
        raise CalibrantError(f"seed must be at least 0, not {seed}")


def named(metrics: Sequence[str | Metric] | str | None) -> dict[str, Metric]:
    """The metrics by the name that they are asked for, DEFAULT if none are."""
    if metrics is None:
        metrics = DEFAULT
    elif isinstance(metrics, str):
        metrics = split_specs(metrics)
    out: dict[str, Metric] = {}
    for given in metrics:
        for name in [canonical(given)] if isinstance(given, Metric) else split_specs(given) or [given]:
            out[name] = given if isinstance(given, Metric) else metric(name)
    return out


def _verdict(error: Estimate, gap: Estimate, rows: int) -> str:
    """Over- or underconfident only where the signed gap is most of the error; else errors of both signs."""
    assert error.null is not None
    assert gap.null is not None
    size = 100 * error.value
    if error.null.p >= 0.05:
        if rows < FEW_ROWS:
            return f"{rows} rows are too few to tell whether the confidence of the top label can be trusted"
        return (
            f"no miscalibration of the top label to be seen: confidence is off by {size:.1f} points, "
            f"and {_calibrated(error.null)}"
        )
    if gap.null.p < 0.05 and abs(gap.value) >= error.value / 2:
        direction = "over" if gap.value > 0 else "under"
        return f"{direction}confident by {100 * abs(gap.value):.1f} points; {_calibrated(gap.null)}"
    return f"miscalibrated by {size:.1f} points, too high here and too low there; {_calibrated(error.null)}"


def _calibrated(null: Null) -> str:
    p = p_value(null.p, null.redraws)
    chance = f"p {p}" if p.startswith("<") else f"p = {p}"
    return f"a calibrated model of this kind would show {100 * null.mean:.1f}; {chance}"
