"""Markdown tables that a command writes into the documentation, between markers, so that nobody types a number."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def rewrite(page: str, name: str, table: str) -> None:
    """Put a table between `<!-- table:NAME -->` and `<!-- /table -->` of a page of the documentation."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- table:{re.escape(name)} -->\n).*?(<!-- /table -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(
            f"{page} has no place for the table {name}; add <!-- table:{name} --> and <!-- /table -->"
        )
    path.write_text(pattern.sub(lambda m: f"{m[1]}\n{table}\n\n{m[2]}", text), encoding="utf-8")
