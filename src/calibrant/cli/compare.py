"""`calibrant compare`: the paired difference of two models on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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


@app.command("compare")
def compare_command(
    a: Annotated[Path, typer.Argument(metavar="A", readable=False, help="Predictions of one model.")],
    b: Annotated[
        Path, typer.Argument(metavar="B", readable=False, help="Predictions of the other, on the same rows.")
    ],
    metrics: MetricsOption = None,
    json: JsonOption = False,
    resamples: Annotated[int, typer.Option(min=100, help="Bootstrap resamples of the rows.")] = 1000,
    seed: SeedOption = 0,
) -> None:
    """Paired difference of every metric (B minus A), with its interval and p."""
    with guarded():
        from calibrant.core.predictions import load
        from calibrant.metrics.compare import compare
        from calibrant.metrics.evaluate import named

        wanted = metric_specs(metrics)
        named(wanted)
        with progress("resampling") as report:
            first, second = load(a), load(b)
            found = compare(first, second, wanted, resamples=resamples, seed=seed, progress=report)
        if json:
            print_json(found.to_json())
        else:
            from calibrant.report.terminal import print_comparison

            print_comparison(found)
