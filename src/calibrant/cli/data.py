"""`calibrant data`: which datasets there are, and how they come into the data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli import JsonOption, app, guarded, print_json, progress

if TYPE_CHECKING:
    from calibrant.data.shelf import Item
    from calibrant.data.store import Kept

data_app = typer.Typer(
    name="data",
    help="Datasets: what there is, fetched from where it is published, or imported from a file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(data_app)

DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="PATH",
        help="Where datasets are kept: else CALIBRANT_DATA, or calibrant in XDG_DATA_HOME or ~/.local/share.",
    ),
]
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="cifar10, svhn, ...; see 'calibrant data list'.")
]


@data_app.command("list")
def list_command(data_dir: DataDirOption = None, json: JsonOption = False) -> None:
    """Every dataset, and whether it is there."""
    with guarded():
        from calibrant.data.shelf import items
        from calibrant.data.store import directory

        found = items(data_dir)
        if json:
            print_json([_document(item) for item in found])
            return
        _print_items(found, directory(data_dir))


@data_app.command("fetch")
def fetch_command(name: NameArgument, data_dir: DataDirOption = None, json: JsonOption = False) -> None:
    """Download a dataset from where it is published, and convert it; a download that broke off goes on."""
    with guarded():
        from contextlib import ExitStack

        from calibrant.core.samples import Download
        from calibrant.data.download import Report
        from calibrant.data.shelf import fetch, importable, item, there

        importable(name)
        before = there(name, data_dir)
        with ExitStack() as bars:

            def begin(file: Download) -> Report:
                bars.close()
                typer.echo(f"downloading {file.url}", err=True)
                return bars.enter_context(progress(file.name))

            kept = fetch(name, data_dir, begin)
        if json:
            print_json(_document(item(name, data_dir)))
            return
        typer.echo(_sentence(name, kept) + ("" if before is None else ", fetched or imported before"))


@data_app.command("import")
def import_command(
    name: NameArgument,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FROM",
            readable=False,
            help="The published archive, its folder, an npz, parquet or image folders.",
        ),
    ],
    data_dir: DataDirOption = None,
    json: JsonOption = False,
) -> None:
    """Convert files that are here into the one file that is kept of a dataset; what was kept of it is replaced."""
    with guarded():
        from calibrant.data.shelf import bring, item, oddity

        kept = bring(name, source, data_dir)
        if json:
            print_json(_document(item(name, data_dir)))
        else:
            typer.echo(_sentence(name, kept))
        odd = oddity(name, kept)
        if odd is not None:
            typer.echo(f"note: {odd}", err=True)


def _sentence(name: str, kept: Kept) -> str:
    return (
        f"{name}: {kept.train:,} training and {kept.test:,} test rows, {len(kept.classes)} classes, "
        f"in {kept.path} ({_size(kept.bytes)})"
    )


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.0f} kB"


def _document(item: Item) -> dict[str, object]:
    """One dataset as JSON has it; what is only known of a kept one is null."""
    kept = item.kept
    return {
        "name": item.name,
        "summary": item.summary,
        "state": item.state,
        "downloads": [{"url": each.url, "checksum": each.checksum or None} for each in item.downloads],
        "path": None if kept is None else str(kept.path),
        "source": None if kept is None else kept.source,
        "train": None if kept is None else kept.train,
        "test": None if kept is None else kept.test,
        "classes": None if kept is None else len(kept.classes),
        "bytes": None if kept is None else kept.bytes,
        "sha256": None if kept is None else kept.sha256,
    }


def _print_items(found: list[Item], where: Path) -> None:
    """A table: name, state, rows, what it is."""
    from rich.table import Table

    from calibrant.report.terminal import Screen

    told = {
        "absent": "not here: fetch or import it",
        "damaged": "damaged: import it again",
        "ready": "ready, needs no file",
        "own": "your files: path=...",
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("dataset", "state", "what it is"):
        table.add_column(head, overflow="fold")
    for item in found:
        kept = item.kept
        state = told[item.state] if kept is None else f"here: {kept.train:,} + {kept.test:,} rows"
        table.add_row(item.name, state, item.summary)
    screen = Screen()
    screen.print(table)
    screen.print(f"data directory: {where}", style="dim", soft_wrap=True, highlight=False)
