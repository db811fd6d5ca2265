"""Results in a terminal: one clear table, one sentence, one diagram, in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrant.core.contracts import Estimate
from calibrant.core.registry import Entry
from calibrant.metrics.compare import Comparison
from calibrant.metrics.evaluate import Evaluation

_PLAIN = {"nll", "auroc"}  # in nats, and an area: everything else reads best in percent
_HEIGHT = 11
_WIDTH = 45


def print_evaluation(evaluation: Evaluation, console: Console | None = None) -> None:
    """The table, the verdict and the reliability diagram of one file."""
    console = console or Console()
    classes = (
        "(confidence, correct) pairs" if evaluation.classes is None else f"{evaluation.classes:,} classes"
    )
    console.print(Text(f"{evaluation.source}: {evaluation.n:,} rows, {classes}", style="bold"))
    table = _table("metric", "value", "95 % interval", "if calibrated", "p")
    notes = []
    for spec, found in evaluation.items():
        if found.reason is not None:
            table.add_row(spec, Text("n/a", style="dim"), "", "", "")
            notes.append(f"{spec}: {found.reason}")
            continue
        scale, unit = _unit(found)
        null = found.null
        table.add_row(
            spec,
            f"{scale * found.value:.{_digits(unit)}f}{unit}",
            _interval(found, scale, unit),
            "" if null is None else f"{scale * null.mean:.2f}{unit}",
            "" if null is None else _p(null.p),
        )
    console.print(table)
    for note in notes:
        console.print(Text(note, style="dim"), soft_wrap=True)
    console.print(Text(evaluation.verdict, style="bold"), soft_wrap=True)
    console.print()
    for line in reliability_lines(evaluation):
        console.print(line)
    console.print()


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """The table of paired differences."""
    console = console or Console()
    console.print(Text(f"A: {comparison.a}\nB: {comparison.b}\n{comparison.n:,} rows, paired", style="bold"))
    table = _table("metric", "A", "B", "B - A", "95 % interval", "p")
    notes = []
    for spec, found in comparison.items():
        if found.reason is not None or found.ci is None or found.p is None:
            table.add_row(spec, Text("n/a", style="dim"), "", "", "", "")
            notes.append(f"{spec}: {found.reason}")
            continue
        plain = spec.split("(")[0] in _PLAIN
        scale, unit = (1.0, "") if plain else (100.0, " %")
        digits = _digits(unit)
        better = (found.b < found.a) == (found.better == "lower")
        if found.better == "zero":
            better = abs(found.b) < abs(found.a)
        style = "" if found.p >= 0.05 else "green" if better else "red"
        table.add_row(
            spec,
            f"{scale * found.a:.{digits}f}{unit}",
            f"{scale * found.b:.{digits}f}{unit}",
            Text(f"{scale * found.value:+.{digits}f}", style=style),
            f"{scale * found.ci[0]:+.{digits}f} to {scale * found.ci[1]:+.{digits}f}",
            _p(found.p),
        )
    console.print(table)
    for note in notes:
        console.print(Text(note, style="dim"), soft_wrap=True)
    told = [s for s, d in comparison.items() if d.p is not None and d.p < 0.05]
    sentence = (
        f"B differs from A in {', '.join(told)} (p < 0.05 each)" if told else "no difference to be seen"
    )
    console.print(Text(sentence, style="bold"), soft_wrap=True)


def print_list(kind: str, entries: Iterable[Entry], console: Console | None = None) -> None:
    """Names with their parameters and what they are."""
    console = console or Console()
    table = _table(kind, "what it is", right=False)
    for entry in entries:
        table.add_row(entry.canonical, entry.summary)
    console.print(table)


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


def _unit(found: Estimate) -> tuple[float, str]:
    return (1.0, "") if found.spec.split("(")[0] in _PLAIN else (100.0, " %")


def _digits(unit: str) -> int:
    return 2 if unit else 4


def _interval(found: Estimate, scale: float, unit: str) -> str:
    if found.ci is None:
        return "none"
    digits = _digits(unit)
    return f"{scale * found.ci[0]:.{digits}f} to {scale * found.ci[1]:.{digits}f}"


def _p(p: float) -> str:
    return "< 0.001" if p <= 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _table(*head: str, right: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if right and i else "left", no_wrap=right, overflow="fold")
    return table
