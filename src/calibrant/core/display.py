"""How results are written for people, in a terminal and in a notebook alike: percent, one row a metric."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Literal

Unit = Literal["%", ""]
"""Percent for what is a share; nothing for nats and areas."""

ESTIMATE_HEAD = ("metric", "value", "95 % interval", "if calibrated", "p")
COMPARISON_HEAD = ("metric", "A", "B", "B - A", "95 % interval", "p")
NONE = "none"


def number(value: float, unit: Unit, *, signed: bool = False, bare: bool = False) -> str:
    """4.13 % or 0.2310; `bare` leaves the sign of percent to a neighbour."""
    scaled, digits = (100 * value, 2) if unit else (value, 4)
    text = f"{scaled:+.{digits}f}" if signed else f"{scaled:.{digits}f}"
    return f"{text} %" if unit and not bare else text


def interval(ends: tuple[float, float] | None, unit: Unit, *, signed: bool = False) -> str:
    """`3.10 to 5.20`, in the unit of the value beside it."""
    if ends is None:
        return NONE
    low, high = (number(end, unit, signed=signed, bare=True) for end in ends)
    return f"{low} to {high}"


def p_value(p: float, draws: int) -> str:
    """0.031, or `< 0.001` when none of the draws was as extreme."""
    floor = 1 / (1 + draws)
    if p <= floor * (1 + 1e-9):
        return f"< {float(f'{floor:.1g}'):g}"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def notes(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """`no interval for mce, smece: ...`, one line for each reason, from (name, reason) pairs."""
    grouped: dict[str, list[str]] = {}
    for name, reason in reasons:
        grouped.setdefault(reason, []).append(name)
    return [f"{', '.join(names)}: {reason}" for reason, names in grouped.items()]


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]], below: Iterable[str] = ()) -> str:
    """A plain, escaped HTML table for notebooks, with lines of text below it."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    lines = "".join(f"<p>{escape(line)}</p>" for line in below)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{lines}"
