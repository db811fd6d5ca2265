"""`calibrant demo`: from data to a verdict, on the dataset that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import JsonOption, app, guarded, print_json
from calibrant.cli.train import told

if TYPE_CHECKING:
    from calibrant.core.predictions import Predictions
    from calibrant.train import Trained

LOSSES = {
    "ce": "ce",
    "label-smoothing": "label_smoothing(epsilon=0.1)",
    "focal": "focal(gamma=3)",
    "l1-norm": "ce + 0.01*lp_norm(p=1)",
}
"""What is compared, by the name of its folder."""

METHODS = {"temperature": "temperature", "histogram": "histogram(bins=15)"}
SHOWN = ("error", "nll", "ece(bins=15)")


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where runs and predictions go.")] = Path(
        "calibrant-demo"
    ),
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Epochs of each run.")] = 20,
    json: JsonOption = False,
) -> None:
    """Train four losses on the embedded images, calibrate each after training, and compare; about two minutes.

    What is done already is only read, so a second call shows the same at once, and one that was cut off goes on.
    """
    with guarded():
        from calibrant.train import Run, recipe, train

        rows: dict[str, dict[str, Any]] = {}
        for name, loss in LOSSES.items():
            run = Run(loss=loss, recipe=recipe("short", epochs=epochs, crop=0, flip="none"))
            typer.echo(f"{loss}: {epochs} epochs on fashion-mini", err=True)
            with told(run) as report:
                trained = train(run, out / name, resume=True, report=report)
            rows[loss] = _judged(trained)
        if json:
            print_json({"epochs": epochs, "out": str(out), "losses": rows})
            return
        _print(rows, out)


def _judged(trained: Trained) -> dict[str, Any]:
    """A run's test predictions as they are, and after each method that was fitted to val; written beside the run."""
    from calibrant.calibrators.calibrate import calibrate

    where = trained.directory / "calibrated"
    where.mkdir(exist_ok=True)
    found: dict[str, Any] = {"run": trained.run.id, "temperature": trained.summary["temperature"]}
    found["raw"] = _values(trained.test)
    for name, method in METHODS.items():
        made = calibrate(trained.val, trained.test, method).predictions
        made.save(where / f"test-{name}.npz")
        found[f"after {name}"] = _values(made)
    return found


def _values(predictions: Predictions) -> dict[str, float | None]:
    """The metrics that are shown; None for one that does not apply."""
    from calibrant.metrics.evaluate import evaluate

    found = evaluate(predictions, list(SHOWN))
    return {spec: None if each.reason else each.value for spec, each in found.items()}


def _print(rows: dict[str, dict[str, Any]], out: Path) -> None:
    """The table of losses, what it says, and the plain network in full, before and after temperature scaling."""
    from calibrant.core.predictions import load
    from calibrant.metrics.compare import compare
    from calibrant.metrics.evaluate import evaluate
    from calibrant.report.pipeline import print_pipeline
    from calibrant.report.terminal import print_comparison, print_evaluation

    raw, scaled = out / "ce" / "predictions" / "test.npz", out / "ce" / "calibrated" / "test-temperature.npz"
    before, after = load(raw), load(scaled)
    print_evaluation(evaluate(before))
    print_comparison(compare(before, after))
    print_pipeline(rows)
    typer.echo(f"next: calibrant evaluate {raw}, or calibrant compare A B with any two files below {out}")
