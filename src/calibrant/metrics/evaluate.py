"""Can this model's confidence be trusted? Every metric of one set of predictions, and a sentence that answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from calibrant.core.contracts import ESTIMATE_HEAD, ArrayLike, Estimate, html_table
from calibrant.core.predictions import Predictions, TopLabel
from calibrant.core.spec import build, canonical, split_specs
from calibrant.metrics.binned import ECE
from calibrant.metrics.metric import Metric, estimate, estimates
from calibrant.metrics.proper import Overconfidence
from calibrant.metrics.scores import Scores

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

    def __getitem__(self, spec: str) -> Estimate:
        return self.estimates[spec]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    @property
    def verdict(self) -> str:
        """One sentence in plain words, from `ece(bins=15)`, its null, and the sign of the gap."""
        return _verdict(
            estimate(ECE(), self.scores, self.seed),
            estimate(Overconfidence(), self.scores, self.seed),
        )

    def to_json(self) -> dict[str, Any]:
        """The document that `calibrant evaluate --json` prints: fractions, not percent."""
        return {
            "n": self.n,
            "classes": self.classes,
            "source": self.source,
            "metrics": {spec: estimate_json(found) for spec, found in self.estimates.items()},
        }

    def _repr_html_(self) -> str:
        rows = [[spec, *found.row()[1:]] for spec, found in self.estimates.items()]
        return html_table(ESTIMATE_HEAD, rows) + html_table([self.verdict], [])


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
    chosen = named(metrics)
    scores = Scores(predictions, weights)
    found = estimates(chosen.values(), scores, seed)
    return Evaluation(
        scores.n, scores.classes, str(predictions.source), dict(zip(chosen, found, strict=True)), scores, seed
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


def _verdict(error: Estimate, gap: Estimate) -> str:
    assert error.null is not None and gap.null is not None
    points, usual, p = 100 * error.value, 100 * error.null.mean, error.null.p
    chance = "p < 0.001" if p <= 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
    calibrated = f"a calibrated model of this kind would show {usual:.1f}; {chance}"
    if p >= 0.05:
        return f"no miscalibration to be seen: confidence is off by {points:.1f} points, and {calibrated}"
    if gap.null.p >= 0.05:
        return f"miscalibrated by {points:.1f} points, too high here and too low there; {calibrated}"
    return f"{'over' if gap.value > 0 else 'under'}confident by {points:.1f} points; {calibrated}"
