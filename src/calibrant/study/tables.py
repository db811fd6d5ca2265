"""The files for people and papers: a tidy CSV, and the tables of an answer in Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from calibrant.core.display import Unit, interval, number
from calibrant.study.answer import quantities
from calibrant.study.grid import Grid
from calibrant.study.plan import Quantity
from calibrant.study.store import Record

Rows = list[list[str]]


def csv_text(grid: Grid, records: Mapping[str, Record]) -> str:
    """One row a number, as fractions in full precision, with the hash of the predictions that it came from."""
    names = [axis.name for axis in grid.study.axes]
    after: dict[str, list[str]] = {}
    for quantity in quantities(grid):
        after.setdefault(quantity.calibrator, []).append(quantity.name)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["study", "scale", *names, "seed", "calibrator", "metric", "value", "run", "cell", "predictions"]
    )
    for cell in grid.cells:
        record = records.get(cell.key)
        if record is None or record.error is not None:
            continue
        levels = [level for _, level in cell.point.at]
        for name in after[cell.calibrator]:
            value = record.values.get(name)
            place = [grid.study.name, grid.scale.name, *levels, cell.point.seed, cell.calibrator]
            shown = "" if value is None else repr(value)
            writer.writerow([*place, name, shown, cell.point.run.id, cell.key, record.predictions])
    return out.getvalue()


def tables(document: Mapping[str, Any]) -> Iterator[tuple[str, list[str], Rows]]:
    """Title, head and rows of a table for each quantity: calibrators and places down, the compared levels across."""
    columns = document["axes"][document["columns"]]
    names = [name for name in document["axes"] if name != document["columns"]]
    for quantity in dict.fromkeys(row["quantity"] for row in document["table"]):
        own = [row for row in document["table"] if row["quantity"] == quantity]
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for row in own:
            key = (*(row["at"][name] for name in names), row["calibrator"])
            lines.setdefault(key, {})[row["at"][document["columns"]]] = spread(row)
        shown = [name for name in names if len(document["axes"][name]) > 1]
        rows = [
            [*(level for name, level in zip(names, key, strict=False) if name in shown), key[-1]]
            + [cells.get(column, "") for column in columns]
            for key, cells in lines.items()
        ]
        unit = " (%)" if own[0]["unit"] else ""
        yield f"{quantity}{unit}", [*shown, "", *columns], rows


def spread(row: Mapping[str, Any]) -> str:
    """`4.06 ± 0.09 ▲`, in percent without its sign where it is a share."""
    unit: Unit = row["unit"]
    sd = "" if row["sd"] is None else f" ± {number(row['sd'], unit, bare=True)}"
    return f"{number(row['mean'], unit, bare=True)}{sd}{' ' + row['arrow'] if row['arrow'] else ''}"


def claim_rows(document: Mapping[str, Any]) -> Rows:
    """A row for each claim with its verdict and how its comparisons went."""
    rows = []
    for claim in document["claims"]:
        verdicts = [each["verdict"] for each in claim["comparisons"]]
        went = ", ".join(f"{verdicts.count(v)} {v}" for v in ("holds", "fails", "undecided") if v in verdicts)
        rows.append([claim["id"], claim["says"], f"{claim['verdict']} ({went})"])
    return rows


def comparison_rows(document: Mapping[str, Any]) -> Rows:
    """A row for each comparison of each claim: n, paired difference, interval, p after Holm."""
    units = {row["quantity"]: row["unit"] for row in document["table"]}
    rows = []
    for claim in document["claims"]:
        for each in claim["comparisons"]:
            unit: Unit = units.get(each["quantity"], "")
            said = sentence(each)
            where = " ".join(level for name, level in each["at"].items() if len(document["axes"][name]) > 1)
            gap, ends, p = each["difference"], each["interval"], each["p_holm"]
            numbers = [
                "" if gap is None else number(gap, unit, signed=True),
                "" if ends is None else interval(tuple(ends), unit, signed=True),
                "" if p is None else f"{p:.3g}",
            ]
            rows.append([claim["id"], said, where, str(each["n"]), *numbers, each["verdict"]])
    return rows


def sentence(each: Mapping[str, Any]) -> str:
    """A comparison as a claim writes it."""
    one, two = (Quantity(side["quantity"], side["calibrator"]) for side in (each, each["against"]))
    if one != two:
        return f"{one} {each['sign']} {two}: {each['left']}"
    right = each["right"] if isinstance(each["right"], str) else f"{each['right']:g}"
    right += f" {'+' if each['margin'] > 0 else '-'} {abs(each['margin']):g}" if each["margin"] else ""
    return f"{one}: {each['left']} {each['sign']} {right}"


def published_rows(document: Mapping[str, Any]) -> Rows:
    """A row for each published number with what was measured."""
    rows = []
    for each in document["published"]:
        unit: Unit = each["unit"]
        level = each["at"][document["columns"]]
        printed, own = (
            "" if mean is None else spread({"unit": unit, "mean": mean, "sd": sd, "arrow": ""})
            for mean, sd in ((each["published"], each["published_sd"]), (each["measured"], each["sd"]))
        )
        rows.append([each["place"], each["row"], level, printed, own, str(each["n"]), each["verdict"]])
    return rows


CLAIM_HEAD = ["claim", "what it says", "verdict"]
COMPARISON_HEAD = ["claim", "comparison", "at", "n", "difference", "95 % interval", "p (Holm)", "verdict"]
PUBLISHED_HEAD = ["place", "row", "method", "published", "measured", "n", "verdict"]
ARROWS = (
    "Mean ± standard deviation over seeds. ▲ ▼: above or below {reference} in a two-sample t-test at 0.05;"
    " △ ▽: not significantly so."
)


def about(document: Mapping[str, Any]) -> list[str]:
    """What has to be read before any number."""
    seeds = len(document["seeds"])
    lines = [
        document["question"],
        f"Scale: {document['statement']}; {seeds} {'seed' if seeds == 1 else 'seeds'}.",
    ]
    if document["document"] and not document["as_published"]:
        lines.append(
            "These numbers were not made as the document's were, so that they neither confirm nor refute it."
        )
    if document["cells"]["failed"]:
        lines.append(f"{document['cells']['failed']} of {document['cells']['total']} cells have failed.")
    return lines


def markdown(document: Mapping[str, Any]) -> str:
    """Every table of an answer, to be read as it stands."""
    parts = [f"# {document['study']}", *about(document)]
    if document["reference"]:
        parts.append(ARROWS.format(reference=document["reference"]))
    for title, head, rows in tables(document):
        parts += [f"## {title}", _markdown(head, rows)]
    for title, head, rows in (
        ("Claims", CLAIM_HEAD, claim_rows(document)),
        ("Comparisons", COMPARISON_HEAD, comparison_rows(document)),
        ("Published against measured", PUBLISHED_HEAD, published_rows(document)),
    ):
        if rows:
            parts += [f"## {title}", _markdown(head, rows)]
    parts += [f"- {note}" for note in document["notes"]]
    return "\n\n".join(parts) + "\n"


def _markdown(head: Sequence[str], rows: Rows) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


_TEX = {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$", "<": "$<$", ">": "$>$"}
_TEX |= {
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "△": r"$\vartriangle$",
    "▽": r"$\triangledown$",
}
_TEX |= {
    "γ": r"$\gamma$",
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "^": r"\^{}",
    "~": r"\~{}",
}


def tex(document: Mapping[str, Any]) -> str:
    """The same tables as tabulars for a paper; they need amssymb and booktabs."""
    parts = [f"% {line}" for line in about(document)]
    for title, head, rows in tables(document):
        across = len(document["axes"][document["columns"]])
        lines = [
            f"% {title}",
            f"\\begin{{tabular}}{{{'l' * (len(head) - across)}{'r' * across}}}",
            r"\toprule",
        ]
        lines += [_tex(head), r"\midrule", *map(_tex, rows), r"\bottomrule", r"\end{tabular}"]
        parts.append("\n".join(lines))
    return "\n".join(parts) + "\n"


def _tex(cells: Sequence[str]) -> str:
    return " & ".join("".join(_TEX.get(char, char) for char in cell) for cell in cells) + r" \\"
