"""A study in a terminal: the list of them, a grid before it is run, the view while it runs, and its answer.

Everything here reads plain documents: who shows results must not be able to make them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from calibrant.report.terminal import Screen, _print_table, _say, _table

STYLES = {"holds": "green", "fails": "red", "failed": "red", "done": "green"}
_MOST_ROWS = 12


def print_studies(found: Iterable[Mapping[str, Any]], console: Console | None = None) -> None:
    """Name, question and claims of every study."""
    console = console or Screen()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("study", "what it asks", "claims"):
        table.add_column(head, overflow="fold")
    for each in found:
        table.add_row(each["name"], each["question"], " ".join(each["claims"]))
    console.print(table)


def print_plan(plan: Mapping[str, Any], console: Console | None = None) -> None:
    """The grid of a study, what is there of it, and how long the rest will take."""
    console = console or Screen()
    _say(console, f"{plan['study']}: {plan['question']}", "bold")
    _say(console, f"scale {plan['statement']}; there is {', '.join(plan['scales'])}", "")
    table = _table("axis", "levels")
    table.columns[1].justify = "left"
    for axis, levels in plan["axes"].items():
        table.add_row(axis, ", ".join(levels))
    table.add_row("seed", ", ".join(map(str, plan["seeds"])))
    table.add_row("calibrator", ", ".join(plan["calibrators"]))
    _print_table(console, table)
    _say(console, f"metrics: {', '.join(plan['metrics'])}", "")
    if plan["claims"]:
        _say(console, f"claims: {', '.join(plan['claims'])}", "")
    cells = f"{plan['runs']:,} runs, {plan['cells']:,} cells; {plan['runs_due']:,} runs are to be done"
    if not plan["runs_due"]:
        _say(console, cells, "bold")
    elif plan["seconds"] is None:
        _say(console, f"{cells}, and how long that takes is not known: {plan['unknown']}", "bold")
    else:
        workers = f"{plan['workers']} {'worker' if plan['workers'] == 1 else 'workers'}"
        _say(console, f"{cells}: about {duration(plan['seconds'])} with {workers} here", "bold")


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `4.2 days`: no more digits than an estimate has."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def print_answer(
    document: Mapping[str, Any],
    tables: Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]],
    about: Sequence[str],
    console: Console | None = None,
) -> None:
    """What was asked and at what scale, the tables, and why some numbers are missing."""
    console = console or Screen()
    _say(console, about[0], "bold")
    for line in about[1:]:
        _say(console, line, "")
    for title, head, rows in tables:
        if not rows:
            continue
        console.print()
        _say(console, title, "bold")
        table = _table(*head)
        for row in rows:
            table.add_row(*(Text(cell, style=STYLES.get(cell.partition(" ")[0], "")) for cell in row))
        for column, name in zip(table.columns, head, strict=True):
            column.justify = "right" if name in document["axes"][document["columns"]] else "left"
        _print_table(console, table)
    if document["notes"]:
        console.print()
    for note in document["notes"]:
        _say(console, note, "dim")


class LiveStudy:
    """The view while a study runs: a table of runs and a bar in a terminal, else a line for each run that is over."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows: dict[str, tuple[str, str]] = {}
        self.best: dict[str, tuple[float, str]] = {}
        done = TextColumn("{task.completed:.1f}/{task.total} runs")
        columns = (done, BarColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=console)
        self.task = self.bar.add_task("runs", total=None)
        self.live = Live(console=console, transient=True, auto_refresh=False, get_renderable=self.shown)

    def __enter__(self) -> LiveStudy:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def update(self, label: str, state: str, text: str, over: int, total: int, parts: float = 0.0) -> None:
        """A run has a new state; `over` runs of the total are over, and `parts` is what is done of the others."""
        self.rows.pop(label, None)
        self.rows[label] = (state, text)
        self.bar.update(self.task, completed=over + parts, total=total)
        if self.console.is_terminal:
            self.live.refresh()
        elif state in ("done", "failed"):
            _say(self.console, f"{over}/{total} {label}: {state}; {text}", "")

    def note_best(self, name: str, value: float, label: str, shown: str) -> None:
        """Keep the smallest value so far of one kind."""
        if name not in self.best or value < self.best[name][0]:
            self.best[name] = (value, f"{shown} ({label})")

    def shown(self) -> RenderableType:
        """The runs that something happened to last, how many wait, the best so far, and the bar."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("run", "state", ""):
            table.add_column(head, no_wrap=True)
        told = [(label, *row) for label, row in self.rows.items() if row[0] != "waiting"]
        for label, state, text in told[-_MOST_ROWS:]:
            table.add_row(label, Text(state, style=STYLES.get(state, "")), text)
        waiting = sum(state == "waiting" for state, _ in self.rows.values())
        lines = [f"{waiting} more waiting"] if waiting else []
        lines += [f"least {name} so far: {text}" for name, (_, text) in self.best.items()]
        return Group(table, *(Text(line, style="dim") for line in lines), self.bar)
