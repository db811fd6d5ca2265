"""`calibrant study`: a question as one file, run as a grid, resumable, and answered with verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import JsonOption, app, guarded, print_json
from calibrant.cli.data import DataDirOption

if TYPE_CHECKING:
    from calibrant.study import Grid, Outcome, Progress

study_app = typer.Typer(
    name="study",
    help="Questions as files: which there are, what one would cost, and its answer.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(study_app)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", help="A study of 'calibrant study list', or a .toml file of your own."
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where results and runs are kept; else studies/NAME."),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Processes; else one for each GPU or core."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="scale=tiny|short|full, seeds=5, or any setting of the base run, such as epochs=3; may repeat.",
    ),
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="D", help="auto (every GPU there is), cpu, cuda:1, ...")
]


@study_app.command("list")
def list_command(json: JsonOption = False) -> None:
    """The studies that come with the package, and the claims that each judges."""
    with guarded():
        from calibrant.study import load, shipped

        found = [
            {
                "name": each.name,
                "question": each.question,
                "document": each.document,
                "scales": list(each.scales),
                "claims": [claim.id for claim in each.claims],
            }
            for each in map(load, shipped())
        ]
        if json:
            print_json(found)
            return
        from calibrant.report.study import print_studies

        print_studies(found)


@study_app.command("show")
def show_command(
    name: NameArgument,
    out: OutOption = None,
    workers: WorkersOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """The grid of a study, how many runs it has, and about how long they take here."""
    with guarded():
        plan = _plan(_grid(name, settings), out, workers, device, data_dir)
        if json:
            print_json(plan)
            return
        from calibrant.report.study import print_plan

        print_plan(plan)


@study_app.command("run")
def run_command(
    name: NameArgument,
    out: OutOption = None,
    workers: WorkersOption = None,
    settings: SetOption = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Execute the cells again that have failed.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a claim fails.")] = False,
    device: DeviceOption = "auto",
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Run what is missing of a study, and answer its question; what is done is never done again."""
    with guarded():
        from calibrant.study import run

        planned = _grid(name, settings)
        try:
            with told(planned) as report:
                outcome = run(
                    planned,
                    out,
                    workers=workers,
                    retry_failed=retry_failed,
                    data_dir=data_dir,
                    device=device,
                    report=report,
                )
        except KeyboardInterrupt:
            typer.echo("what is done is kept; the same command goes on with the rest", err=True)
            raise
        if json:
            about = {"out": str(outcome.directory), "executed": outcome.executed}
            print_json({**outcome.document, **about})
        else:
            _print(outcome)
        for cell, error in outcome.failures:
            typer.echo(f"calibrant: failed: {cell.point.label}, {cell.calibrator}: {error}", err=True)
        if outcome.failures:
            typer.echo("calibrant: --retry-failed executes failed cells again", err=True)
        failing = [claim["id"] for claim in outcome.document["claims"] if claim["verdict"] == "fails"]
        if check and failing:
            typer.echo(f"calibrant: check failed: {', '.join(failing)} fails", err=True)
        if outcome.failures or (check and failing):
            raise typer.Exit(1)


def _grid(name: str, settings: list[str] | None) -> Grid:
    from calibrant.cli.train import _settings
    from calibrant.study import grid, load

    return grid(load(name), _settings(settings or []))


def _plan(
    planned: Grid, out: Path | None, workers: int | None, device: str, data_dir: Path | None
) -> dict[str, Any]:
    """What `show` says of a study."""
    from calibrant.core.errors import CalibrantError
    from calibrant.study.estimate import estimate
    from calibrant.study.run import missing, workers_here

    due = missing(planned, out or Path("studies") / planned.study.name)
    runs = {cell.point.run.id: cell.point.run for cell in due}
    many = workers or workers_here(device)
    seconds, unknown = None, None
    try:
        seconds = estimate(runs.values(), data_dir, device) / max(min(many, len(runs)), 1)
    except CalibrantError as error:
        unknown = str(error)
    study = planned.study
    return {
        "study": study.name,
        "question": study.question,
        "statement": planned.statement,
        "scale": planned.scale.name,
        "scales": list(study.scales),
        "axes": {axis.name: list(axis.levels) for axis in study.axes},
        "seeds": list(planned.seeds),
        "calibrators": dict(study.calibrators),
        "metrics": list(study.metrics),
        "claims": [claim.id for claim in study.claims],
        "runs": len(planned.points),
        "cells": len(planned.cells),
        "runs_due": len(runs),
        "cells_due": len(due),
        "workers": many,
        "seconds": seconds,
        "unknown": unknown,
    }


@contextmanager
def told(planned: Grid) -> Iterator[Callable[[Progress], None]]:
    """The live view on standard error, or plain lines where that is no terminal."""
    from rich.console import Console

    from calibrant.core.display import number
    from calibrant.report.study import LiveStudy, duration
    from calibrant.study.answer import unit_of

    metrics = planned.study.metrics
    headline = next((name for name in metrics if "ece" in name), metrics[0])
    unit: Any = unit_of(headline)[0]
    parts: dict[str, float] = {}

    def values(at: Progress) -> Mapping[str, float]:
        found = {name: record.values.get(headline) for name, record in at.records.items()}
        return {name: value for name, value in found.items() if value is not None}

    with LiveStudy(Console(stderr=True)) as view:

        def show(at: Progress) -> None:
            label, text = at.point.label, ""
            parts.pop(label, None)
            if at.report is not None:
                epochs = at.report.epochs
                parts[label] = (at.report.epoch - 1 + at.report.step / at.report.steps) / epochs
                text = f"epoch {at.report.epoch}/{epochs}, {duration(at.report.seconds_left)} left"
            elif at.state == "failed":
                text = next(record.error for record in at.records.values() if record.error) or ""
            elif at.state == "done":
                shown = {name: number(value, unit) for name, value in values(at).items()}
                text = f"{headline} " + ", ".join(f"{value} {name}" for name, value in shown.items())
                for name, value in values(at).items():
                    view.note_best(f"{headline} {name}", value, label, shown[name])
            view.update(label, at.state, text, at.over, at.total, sum(parts.values()))

        yield show


def _print(outcome: Outcome) -> None:
    from calibrant.report.study import print_answer
    from calibrant.study import tables

    document = outcome.document
    everything = [
        *tables.tables(document),
        ("claims", tables.CLAIM_HEAD, tables.claim_rows(document)),
        ("comparisons", tables.COMPARISON_HEAD, tables.comparison_rows(document)),
        ("published against measured", tables.PUBLISHED_HEAD, tables.published_rows(document)),
    ]
    print_answer(document, everything, tables.about(document))
    typer.echo(f"{outcome.executed} cells executed; results in {outcome.directory / 'results.csv'}")
