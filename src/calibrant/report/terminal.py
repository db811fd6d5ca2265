"""Results in a terminal: one clear table, one sentence, one diagram, in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from calibrant.core.display import COMPARISON_HEAD, ESTIMATE_HEAD, NONE, Unit, number
from calibrant.core.registry import Entry
from calibrant.metrics.compare import Comparison
from calibrant.metrics.evaluate import Evaluation

_HEIGHT = 11
_WIDTH = 45


class Screen(Console):
    """A console that lets its caller handle a reader who has gone away, such as `head`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_evaluation(evaluation: Evaluation, console: Console | None = None) -> None:
    """The table, the verdict and the reliability diagram of one file."""
    console = console or Screen()
    n, classes = evaluation.n, evaluation.classes
    kind = "(confidence, correct) pairs" if classes is None else f"{classes:,} classes"
    _say(console, f"{evaluation.source}: {n:,} {'row' if n == 1 else 'rows'}, {kind}", "bold")
    table = _table(*ESTIMATE_HEAD)
    for spec, found in evaluation.items():
        table.add_row(
            *(Text(cell, style="dim" if cell in (NONE, "n/a") else "") for cell in found.cells(spec))
        )
    _print_table(console, table)
    for note in evaluation.notes:
        _say(console, note, "dim")
    _say(console, evaluation.verdict, "bold")
    console.print()
    for line in reliability_lines(evaluation):
        line.rstrip()
        console.print(line, soft_wrap=True)
    console.print()


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """The table of paired differences, and what they come to."""
    console = console or Screen()
    _say(console, f"A: {comparison.a}\nB: {comparison.b}\n{comparison.n:,} rows, paired", "bold")
    table = _table(*COMPARISON_HEAD)
    for spec, found in comparison.items():
        style = {None: "", True: "green", False: "red"}[found.improves]
        row = [Text(cell) for cell in found.cells(spec)]
        row[3].stylize(style)
        table.add_row(*row)
    _print_table(console, table)
    for note in comparison.notes:
        _say(console, note, "dim")
    _say(console, comparison.verdict, "bold")


def print_training(directory: Path, summary: Mapping[str, Any], console: Console | None = None) -> None:
    """What a run ended with, on val and test, raw and at the temperature that val asks for; and what to do next."""
    console = console or Screen()
    epochs = f"{summary['epochs']} {'epoch' if summary['epochs'] == 1 else 'epochs'}"
    chosen = "" if summary["epoch"] == summary["epochs"] else f", epoch {summary['epoch']} chosen on val"
    _say(console, f"{directory}: {epochs} in {summary['seconds']:,.0f} s{chosen}", "bold")
    scaled = f"at T = {summary['temperature']:.3g}"
    table = _table("", "error", "nll", "brier", "ece(bins=15)", f"nll {scaled}", f"ece {scaled}")
    units: dict[str, Unit] = {
        "error": "%",
        "nll": "",
        "brier": "%",
        "ece": "%",
        "nll_scaled": "",
        "ece_scaled": "%",
    }
    for part in ("val", "test"):
        cells = [(summary[f"{part}_{key}"], unit) for key, unit in units.items()]
        table.add_row(part, *("n/a" if value is None else number(value, unit) for value, unit in cells))
    _print_table(console, table)
    _say(console, "T is the temperature with the least log loss on val", "dim")
    _say(console, f"next: calibrant evaluate {directory / 'predictions' / 'test.npz'}", "")


def print_list(kind: str, entries: Iterable[Entry], console: Console | None = None) -> None:
    """Names with their parameters and what they are."""
    console = console or Screen()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(kind, overflow="fold")
    table.add_column("what it is", overflow="fold")
    for entry in entries:
        table.add_row(entry.canonical, entry.summary)
    console.print(table if table.row_count else Text(f"there are no {kind} yet"))


def reliability_lines(evaluation: Evaluation, bins: int = 15) -> list[Text]:
    """Accuracy against confidence in equal-width bins: dots for the data, a line where they would be if calibrated.

    Below, how the confidences are spread. A bar from the diagonal to the dot is the gap of that bin.
    """
    sums = evaluation.scores.width_sums(bins)
    seen = sums.weight > 0
    accuracy = np.divide(sums.correct, sums.weight, out=np.zeros(bins), where=seen)
    confidence = np.divide(sums.confidence, sums.weight, out=np.zeros(bins), where=seen)
    step = _WIDTH // bins
    grid = [[" "] * (step * bins) for _ in range(_HEIGHT)]
    for b in np.flatnonzero(seen):
        column = b * step + step // 2
        here, should = _level(accuracy[b]), _level(confidence[b])
        for level in range(min(here, should), max(here, should) + 1):
            grid[level][column] = "│"
        grid[should][column] = "─"
        grid[here][column] = "●"
    lines = [Text("accuracy (●) against confidence (─), by bins of confidence", style="dim")]
    for level in reversed(range(_HEIGHT)):
        share = level / (_HEIGHT - 1)
        label = f"{100 * share:3.0f} %" if level % 5 == 0 else "     "
        line = Text(f"{label} ┤" if level % 5 == 0 else "      │", style="dim")
        for char in grid[level]:
            line.append(char, style={"●": "bold cyan", "─": "dim", "│": "red"}.get(char, ""))
        lines.append(line)
    lines.append(Text("      └" + "─" * (step * bins), style="dim"))
    share = sums.mass / sums.mass.sum()
    blocks = "▁▂▃▄▅▆▇█"
    bars = [blocks[round(7 * math.sqrt(s / share.max()))] if s > 0 else " " for s in share]
    spread = "".join(bar.center(step) for bar in bars)
    lines.append(Text("       " + spread, style="dim"))
    foot = "0 %" + "confidence (rows per bin, root scale)".center(step * bins - 6) + "100 %"
    lines.append(Text("      " + foot, style="dim"))
    return lines


def _level(share: float) -> int:
    return round(float(share) * (_HEIGHT - 1))


def _table(*head: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    return table


def _print_table(console: Console, table: Table) -> None:
    """As wide as the numbers need: a narrow terminal may wrap a line, but no digit is cut away."""
    wide = console.options.update(max_width=10_000)
    needed = Measurement.get(console, wide, table).maximum
    own = console.width
    console.width = max(needed, own)  # `print` takes no width beyond the console's own
    try:
        console.print(table, crop=False, no_wrap=True, overflow="ignore")
    finally:
        console.width = own


def _say(console: Console, text: str, style: str) -> None:
    console.print(Text(text, style=style), soft_wrap=True)
