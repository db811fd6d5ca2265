"""`calibrant list`: what there is, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from calibrant.cli import JsonOption, app, guarded, print_json

if TYPE_CHECKING:
    from calibrant.core.registry import Entry

STUDIES = "studies"


@app.command("list")
def list_command(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="metrics, datasets, ...; all if left out.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Every piece that can be named, with its parameters."""
    with guarded():
        from calibrant.core.errors import SpecError, nearest
        from calibrant.core.registry import ROOMS, names, type_name

        known = [*ROOMS, STUDIES]
        if kind is not None and kind not in known:
            raise SpecError(f"there is no kind {kind!r}{nearest(kind, known)}")
        kinds = [kind] if kind is not None else [k for k in known if k == STUDIES or names(k)]
        if json:
            rows = [
                {
                    "kind": entry.kind,
                    "name": entry.name,
                    "canonical": entry.canonical,
                    "summary": entry.summary,
                    "paper": entry.paper,
                    "parameters": [
                        {
                            "name": p.name,
                            "type": type_name(p.type),
                            "default": _json_value(p.default),
                            "required": p.required,
                        }
                        for p in entry.parameters
                    ],
                }
                for each in kinds
                for entry in _entries(each)
            ]
            print_json(rows)
            return
        from calibrant.report.terminal import print_list

        for each in kinds:
            print_list(each, _entries(each))


def _entries(kind: str) -> list[Entry]:
    """The pieces of a kind; a study is a file and no piece, and takes no parameters."""
    from calibrant.core.registry import Entry, describe

    if kind != STUDIES:
        return describe(kind)
    from calibrant.study import Study, load, shipped

    found = [load(name) for name in shipped()]
    return [Entry(kind, each.name, Study, None, each.question, each.question, ()) for each in found]


def _json_value(default: object) -> object:
    """A default as JSON has it; a nested piece as its spec."""
    from calibrant.core.spec import show_value

    if isinstance(default, tuple):
        return list(default)
    return (
        default if default is None or isinstance(default, bool | int | float | str) else show_value(default)
    )
