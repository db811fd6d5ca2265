"""`calibrant evaluate`: can this model's confidence be trusted?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import (
    JsonOption,
    MetricsOption,
    SeedOption,
    app,
    guarded,
    metric_specs,
    print_json,
    progress,
)

if TYPE_CHECKING:
    from calibrant.metrics.evaluate import Evaluation

_CHECK = re.compile(r"^(?P<spec>.+?)\s*(?P<op>>=|<=|>|<)\s*(?P<bound>[-+]?[0-9.]+(?:[eE][-+]?\d+)?)$")


@app.command("evaluate")
def evaluate_command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", readable=False, help="Predictions: .npz, .parquet or .csv."),
    ],
    metrics: MetricsOption = None,
    json: JsonOption = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if", metavar="CHECK", help="Exit 1 if it holds: 'ece(bins=15)>0.02'; may repeat."
        ),
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Every metric of a file of predictions, with its interval, its null, and a verdict."""
    with guarded():
        checks = [_parse_check(text) for text in fail_if or []]
        wanted = metric_specs(metrics)
        found = [_evaluate_file(path, wanted, [spec for spec, _, _ in checks], seed) for path in files]
        if json:
            documents = [evaluation.to_json() for evaluation, _ in found]
            print_json(documents[0] if len(documents) == 1 else documents)
        else:
            from calibrant.report.terminal import print_evaluation

            for evaluation, _ in found:
                print_evaluation(evaluation)
        failed = [line for _, extra in found for line in _failures(checks, extra)]
        for line in failed:
            typer.echo(line, err=True)
    if failed:
        raise typer.Exit(1)


def _evaluate_file(
    path: Path, wanted: list[str] | None, checked: list[str], seed: int
) -> tuple[Evaluation, Evaluation]:
    """The evaluation to show, with intervals and nulls computed, and the one that holds what is checked."""
    from calibrant.core.predictions import load
    from calibrant.metrics.evaluate import DEFAULT, evaluate
    from calibrant.metrics.evaluate import metric as named

    for spec in [*(wanted or []), *checked]:
        named(spec)  # a typo is told before a large file is read
    shown = list(wanted or DEFAULT)
    with progress(f"{path.name}: values, intervals and nulls") as report:
        predictions = load(path)
        everything = evaluate(predictions, [*shown, *(s for s in checked if s not in shown)], seed=seed)
        evaluation = evaluate_view(everything, shown)
        for done, estimate in enumerate(evaluation.values(), 1):
            _ = estimate.ci, estimate.null
            report(done, len(evaluation))
    return evaluation, everything


def evaluate_view(evaluation: Evaluation, shown: list[str]) -> Evaluation:
    """The same evaluation with only some of its metrics."""
    from dataclasses import replace

    return replace(evaluation, estimates={spec: evaluation[spec] for spec in shown})


def _parse_check(text: str) -> tuple[str, str, float]:
    from calibrant.core.errors import SpecError

    match = _CHECK.match(" ".join(text.split()))
    if match is None:
        raise SpecError(
            f"--fail-if cannot read {text!r}; write a metric, > or <, and a fraction: 'ece(bins=15)>0.02'"
        )
    try:
        bound = float(match["bound"])
    except ValueError:
        raise SpecError(f"--fail-if: {match['bound']!r} in {text!r} is no number") from None
    return " ".join(match["spec"].split()), match["op"], bound


def _failures(checks: list[tuple[str, str, float]], evaluation: Evaluation) -> list[str]:
    """A line for each check that holds. A metric without a finite value cannot pass a check, and says so."""
    compare: dict[str, Any] = {
        ">": lambda a, b: a > b,
        "<": lambda a, b: a < b,
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
    }
    lines = []
    for spec, op, bound in checks:
        estimate = evaluation[spec]
        where = f"{evaluation.source}: {spec}"
        if estimate.reason is not None:
            lines.append(f"calibrant: check failed: {where} has no value ({estimate.reason})")
        elif compare[op](estimate.value, bound):
            lines.append(f"calibrant: check failed: {where} is {estimate.value:.6g}, {op} {bound:g}")
    return lines
