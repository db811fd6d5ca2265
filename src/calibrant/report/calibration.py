"""Did calibration help? A few metrics of the same rows before and after, each with its source, in a terminal."""

from __future__ import annotations

from rich.console import Console

from calibrant.core.display import notes, number
from calibrant.metrics.evaluate import ORACLE, Evaluation
from calibrant.report.terminal import Screen, _print_table, _say, _table


def print_calibration(
    method: str, before: Evaluation, after: Evaluation, console: Console | None = None
) -> None:
    """The method, values before and after, why some have none, and a sentence on either."""
    console = console or Screen()
    _say(console, method, "bold")
    table = _table("metric", "before", "after")
    for spec, old in before.items():
        cells = ["n/a" if each.reason else number(each.value, each.unit) for each in (old, after[spec])]
        table.add_row(spec, *cells)
    _print_table(console, table)
    if after.oracle:
        _say(console, ORACLE, "bold")
    for note in notes((spec, each.reason) for spec, each in after.items() if each.reason is not None):
        _say(console, note, "dim")
    _say(console, f"before: {before.source}: {before.verdict}", "")
    _say(console, f"after:  {after.source}: {after.verdict}", "bold")
