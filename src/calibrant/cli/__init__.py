"""The command line, one file a verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from calibrant import __version__


class Verbs(TyperGroup):
    """The verbs as one command that answers wrong use like everything else: one sentence, exit 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; a usage error of the parser becomes a sentence that begins with `calibrant:`."""
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            code = run()
        except Exception as error:
            told = getattr(error, "format_message", None)
            if told is None:
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(told())
            else:
                text = " ".join(told().split()).rstrip(".")
                where = getattr(getattr(error, "ctx", None), "command_path", "calibrant")
                typer.echo(f"calibrant: {text[:1].lower()}{text[1:]}; see '{where} --help'", err=True)
            code = 2
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="calibrant",
    cls=Verbs,
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
        sys.stdout.flush()
    except CalibrantError as error:
        typer.echo(f"calibrant: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("calibrant: interrupted", err=True)
        raise typer.Exit(130) from None
    except MemoryError:
        typer.echo("calibrant: not enough memory for these predictions; evaluate them in parts", err=True)
        raise typer.Exit(2) from None
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(0) from None
    except OSError as error:
        typer.echo(f"calibrant: {error.strerror or error}; nothing more could be read or written", err=True)
        if error.errno == errno.ENOSPC:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(2) from None


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
    from threading import Timer

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task(label, total=None)
    patience = Timer(2.0, bar.start)
    patience.daemon = True
    if console.is_terminal:
        patience.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        patience.cancel()
        if bar.live.is_started:
            bar.stop()


from calibrant.cli import apply, calibrate, compare, data, demo, evaluate, export, list_, study, train  # noqa: E402, F401  (each adds its verb to `app`)
