"""The command line, one file a verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from calibrant import __version__

app = typer.Typer(
    name="calibrant",
    help="Confidence that can be trusted: measured with its uncertainty, compared, repaired.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document to standard output.")]
MetricsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics", metavar="SPEC,...", help="What to compute, such as 'nll,ece(bins=20)'; may repeat."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of redraws and resamples.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"calibrant {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Confidence that can be trusted: measured with its uncertainty, compared, repaired."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that knows only ASCII gets '?' instead of an error
            stream.reconfigure(errors="replace")


@contextmanager
def guarded() -> Iterator[None]:
    """Our errors become one sentence on standard error and exit 2; an interrupt is exit 130; no traceback."""
    from calibrant.core.errors import CalibrantError

    try:
        yield
    except CalibrantError as error:
        typer.echo(f"calibrant: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("calibrant: interrupted", err=True)
        raise typer.Exit(130) from None
    except MemoryError:
        typer.echo("calibrant: not enough memory for these predictions; evaluate them in parts", err=True)
        raise typer.Exit(2) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise typer.Exit(0) from None


def metric_specs(given: list[str] | None) -> list[str] | None:
    """The specs of every --metrics, split at commas; None if there was none."""
    from calibrant.core.errors import SpecError
    from calibrant.core.spec import split_specs

    if not given:
        return None
    specs = [spec for text in given for spec in split_specs(text)]
    if not specs:
        raise SpecError("--metrics names no metric; write --metrics 'nll,ece(bins=15)'")
    return specs


def print_json(document: Any) -> None:
    """One JSON document on standard output: keys sorted, full precision."""
    import json

    typer.echo(json.dumps(document, sort_keys=True, indent=2, allow_nan=False))


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that shows itself once the work has taken two seconds; silent when not a terminal."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    began, shown = time.monotonic(), False
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task(label, total=None)

    def report(done: int, total: int) -> None:
        nonlocal shown
        if not shown and console.is_terminal and time.monotonic() - began > 2:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        if shown:
            bar.stop()


from calibrant.cli import compare, evaluate, list_  # noqa: E402, F401  (each adds its verb to `app`)
