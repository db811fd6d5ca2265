"""`calibrant train`: a network trained with any loss, and its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import JsonOption, app, guarded, print_json
from calibrant.cli.data import DataDirOption

if TYPE_CHECKING:
    from calibrant.core.samples import Model
    from calibrant.train import Report, Run


@app.command("train")
def train_command(
    data: Annotated[
        str, typer.Option("--data", metavar="NAME", help="A dataset; see 'calibrant data list'.")
    ] = "fashion-mini",
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            help="A network; see 'calibrant list models'. Or package.module:factory of your own code.",
        ),
    ] = "small_cnn",
    loss: Annotated[
        str, typer.Option("--loss", metavar="SPEC", help="Such as 'focal(gamma=1)' or 'ce - 0.1*entropy'.")
    ] = "ce",
    augment: Annotated[
        str, typer.Option("--augment", metavar="SPEC", help="Such as 'mixup(alpha=0.2)' or 'pruning'.")
    ] = "",
    meta: Annotated[
        str,
        typer.Option(
            "--meta", metavar="SPEC", help="What is learned about the loss: gamma_net, weight_decay, ..."
        ),
    ] = "",
    meta_objective: Annotated[
        str,
        typer.Option(
            "--meta-objective",
            metavar="SPEC",
            help="What moves it, on the meta split: 'ce + 0.5*sece' if left out.",
        ),
    ] = "",
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", metavar="NAME", help="short, sgd350, sgd200 or text; else short, or text for texts."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Epochs; the recipe's drops move in proportion.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of weights, order and views.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The run directory; else runs/ID.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="D", help="auto, cpu, cuda, cuda:1, ...")
    ] = "auto",
    data_dir: DataDirOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was cut off.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting of the run or its recipe: lr=0.05, batch=512, split=9:1, ...; may repeat.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a network; its directory then holds predictions, weights and the history of every epoch."""
    with guarded():
        from dataclasses import replace

        from calibrant.train import Run, train
        from calibrant.train import recipe as recipe_named
        from calibrant.train.parallel import is_first_process
        from calibrant.train.run import changed, usual_recipe

        own = _factory(model) if ":" in model else None
        run = Run(
            data=data,
            model=model,
            loss=loss,
            augment=augment,
            meta=meta,
            meta_objective=meta_objective,
            seed=seed,
        )
        run = replace(run, recipe=recipe_named(recipe or usual_recipe(run)))
        asked = {} if epochs is None else {"epochs": str(epochs)}
        run = changed(run, asked | _settings(settings or []))
        try:
            with told(run) as report:
                trained = train(
                    run, out, data_dir=data_dir, device=device, resume=resume, model=own, report=report
                )
        except KeyboardInterrupt:
            typer.echo("the epochs that are done are kept; add --resume to go on", err=True)
            raise
        if not is_first_process():
            return
        if json:
            print_json({"directory": str(trained.directory), "run": run.id, **trained.summary})
        else:
            from calibrant.report.terminal import print_training

            print_training(trained.directory, trained.summary)


def _settings(given: list[str]) -> dict[str, str]:
    """`--set key=value` as a dictionary."""
    from calibrant.core.errors import SpecError

    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise SpecError(f"--set cannot read {text!r}; write key=value, such as lr=0.05")
        if key.strip() in found:
            raise SpecError(f"--set names {key.strip()} twice")
        found[key.strip()] = value
    return found


def _factory(path: str) -> Model:
    """A network of the user's own: `package.module:factory`, called with the shape of an input and the classes."""
    import importlib
    import sys
    from dataclasses import dataclass

    from torch import nn

    from calibrant.core.errors import InputError
    from calibrant.core.samples import InputShape

    name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the directory where the user stands, as with python -m
    try:
        made = getattr(importlib.import_module(name), attribute)
    except ImportError as error:
        raise InputError(
            f"--model {path}: cannot import {name} ({error}); is it on the Python path?"
        ) from None
    except AttributeError:
        raise InputError(f"--model {path}: the module {name} has no {attribute!r}") from None
    if not callable(made):
        raise InputError(f"--model {path} is {made!r:.60}; give a function of (shape, classes)")

    @dataclass(frozen=True)
    class Own:
        def make(self, shape: InputShape, classes: int) -> nn.Module:
            try:
                network = made(shape, classes)
            except Exception as error:
                raise InputError(f"--model {path} fails: {type(error).__name__}: {error}") from error
            if not isinstance(network, nn.Module):
                raise InputError(f"--model {path} gave {network!r:.60}, and no torch.nn.Module")
            return network

    return Own()


@contextmanager
def told(run: Run) -> Iterator[Callable[[Report], None] | None]:
    """A bar on standard error, or a plain line for each epoch where that is no terminal; one process speaks."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    from calibrant.train.parallel import is_first_process

    if not is_first_process():
        yield None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda at: typer.echo(_line(at), err=True) if at.done else None
        return
    bar = Progress(
        TextColumn("epoch {task.fields[epoch]}/" + str(run.recipe.epochs), table_column=Column(no_wrap=True)),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[text]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        console=console,
        expand=True,
        transient=True,
    )
    task = bar.add_task("", total=run.recipe.epochs, epoch=1, text="preparing")

    def show(at: Report) -> None:
        done = at.epoch - 1 + at.step / at.steps
        bar.update(task, completed=done, epoch=at.epoch, text=_text(at))

    with bar:
        yield show


def _line(at: Report) -> str:
    return f"epoch {at.epoch}/{at.epochs}  {_text(at)}"


def _text(at: Report) -> str:
    """`loss 0.4312  val error 8.10 %  ECE 2.31 %  12,345 rows/s  1:02 left`."""
    parts: list[str] = []
    if at.loss is not None:
        parts.append(f"loss {at.loss:.4f}")
    if at.line is not None:
        parts += [f"val error {_percent(at.line['val_error'])}", f"ECE {_percent(at.line['val_ece'])}"]
    if at.step:
        parts += [f"{at.rows_per_second:,.0f} rows/s", f"{_clock(at.seconds_left)} left"]
    return "  ".join(parts)


def _percent(share: Any) -> str:
    return "n/a" if share is None else f"{100 * share:.2f} %"


def _clock(seconds: float) -> str:
    """`0:07`, `12:03`, `3:00:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
