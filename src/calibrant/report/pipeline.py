"""Training and calibration after it as one pipeline: a row for each loss, its values raw and after each method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from calibrant.core.display import number
from calibrant.report.terminal import Screen, _print_table, _say, _table

ECE, NLL = "ece(bins=15)", "nll"


def print_pipeline(rows: Mapping[str, Mapping[str, Any]], console: Console | None = None) -> None:
    """The table, and which loss is best before and after; one seed, so that it says nothing of small differences."""
    console = console or Screen()
    _say(
        console, "every loss, before and after calibration (test; T and bins fitted on val; one seed)", "bold"
    )
    table = _table("loss", "error", "nll", "ece", "T", "nll at T", "ece at T", "ece after histogram")
    for loss, row in rows.items():
        raw, scaled, binned = row["raw"], row["after temperature"], row["after histogram"]
        table.add_row(
            loss,
            number(raw["error"], "%"),
            number(raw[NLL], ""),
            number(raw[ECE], "%"),
            f"{row['temperature']:.2f}",
            number(scaled[NLL], ""),
            number(scaled[ECE], "%"),
            number(binned[ECE], "%"),
        )
    _print_table(console, table)
    first, later = _best(rows, "raw", ECE), _best(rows, "after temperature", NLL)
    same = "the same loss" if first == later else later
    verdict = f"as trained, {first} has the least ECE; scaled, {same} has the least log loss"
    _say(console, verdict, "bold")
    note = "what looks calibrated need not be what calibrates best, and one seed proves neither"
    _say(console, note, "dim")


def _best(rows: Mapping[str, Mapping[str, Any]], stage: str, metric: str) -> str:
    return min(rows, key=lambda name: float(rows[name][stage][metric]))
