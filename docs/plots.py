"""Curves of losses as small SVGs, drawn when the documentation is built: no library, colours for light and dark pages.

A row of ten classes is taken whose other logits lie evenly between -2 and 2, and the logit of the true class is moved
so that its probability p goes from 0 to 1. The left panel has the loss of that row, the right one its derivative with
respect to that logit (for cross-entropy p - 1): what a training step does with it. Where a piece is one number for a
batch, the row stands in a batch of an overconfident model: the left panel has what it adds to the batch's value, the
right one its derivative, both times the size of the batch, as the mean of a loss has them divided by it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

POINTS = 240
BATCH = 128  # rows of the batch in which a row is shown that has no loss of its own
EDGE = 0.004  # p goes from here to 1 minus this
SHOWN = 0.03  # a loss may be infinite at p = 0: its axis ends at the largest value beyond this p
OTHERS = [-2 + 0.5 * k for k in range(9)]
COLOURS = [
    "#3b7dd8",
    "#d9730d",
    "#1f9e74",
    "#c2478b",
    "#8b6fd1",
]  # 3:1 and more on white and on the dark page
GREY = "#8a8f98"
DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 3"]  # told apart without colours, too
WIDTH, HEIGHT, TOP, BOTTOM = 292, 168, 12, 34
LEFT, GAP = 44, 60
LEGEND_ROW = 18
TITLE = 18


@dataclass(frozen=True)
class Curve:
    """One objective along p."""

    name: str
    p: list[float]
    loss: list[float]
    gradient: list[float]
    in_batch: bool = False


def curve(text: str) -> Curve:
    """The loss and the gradient of one spec: of a row, or of a batch as one row in it is moved."""
    import torch

    from calibrant.core.objective import objective

    p = torch.linspace(EDGE, 1 - EDGE, POINTS, dtype=torch.float64)
    others = torch.tensor(OTHERS, dtype=torch.float64)
    own = torch.logit(p) + others.logsumexp(0)
    z = torch.cat([own[:, None], others.expand(POINTS, -1)], 1).requires_grad_()
    criterion = objective(text)
    in_batch = not of_rows(criterion)
    if not in_batch:
        rows = criterion.per_sample(z, torch.zeros(POINTS, dtype=torch.int64))
    else:
        around, labels = overconfident()
        labels = torch.cat([torch.zeros(1, dtype=torch.int64), labels])
        rows = torch.stack([BATCH * criterion(torch.cat([row[None], around]), labels) for row in z])
    (gradient,) = torch.autograd.grad(rows.sum(), z)
    if in_batch:
        rows = rows - rows.min()
    return Curve(text, p.tolist(), rows.tolist(), gradient[:, 0].tolist(), in_batch)


def of_rows(criterion: Any) -> bool:
    """Whether an objective is a mean over rows."""
    from calibrant.core.objective import PerSample

    return all(isinstance(piece, PerSample) for _, piece in criterion.terms)


def overconfident() -> Any:
    """All rows but one of a batch of a model that is overconfident by 0.1, with the accuracy that it should have."""
    from calibrant.data import Synthetic

    predictions, _ = Synthetic(classes=1 + len(OTHERS), error=0.1).draw(BATCH - 1, seed=0)
    return predictions.logits.double(), predictions.labels


def entry_plot(entry: Any) -> str | None:
    """The figure of a registered piece: the curves that it names in `drawn`, or its own; None if it is no objective."""
    from calibrant.core.objective import KINDS

    if entry.kind not in KINDS:
        return None
    drawn = getattr(entry.piece, "drawn", ()) or (entry.name,)
    reference = entry.kind == "losses" and entry.name != "ce"
    return figure(drawn, reference=reference, label=f"Loss and gradient of {entry.name}")


def figure(specs: Sequence[str], *, reference: bool, label: str) -> str:
    """One SVG with two panels, as one line of HTML that Markdown leaves alone."""
    curves = [curve(text) for text in specs]
    grey = [curve("ce")] if reference else []
    drawn = [
        *((c, GREY, "3 3", 1.4) for c in grey),
        *((c, COLOURS[i % 5], DASHES[i % 5], 2.0) for i, c in enumerate(curves)),
    ]
    names = [(c.name, colour, dash, width) for c, colour, dash, width in drawn]
    rows = legend(names)
    total = LEFT + 2 * WIDTH + GAP + 12
    y0 = TOP + len(rows) * LEGEND_ROW + TITLE
    height = y0 + HEIGHT + BOTTOM
    style = f"width:100%;max-width:{total}px;height:auto;font:11px system-ui,sans-serif;color:inherit"
    box = f'viewBox="0 0 {total} {height}" role="img" aria-label="{escape(label)}" style="{style}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', f"<title>{escape(label)}</title>"]
    for line, row in enumerate(rows):
        for x, (name, colour, dash, width) in row:
            y = TOP + line * LEGEND_ROW
            parts.append(stroke(f"M{LEFT + x} {y}h22", colour, dash, width))
            parts.append(f'<text x="{LEFT + x + 28}" y="{y + 4}" fill="currentColor">{escape(name)}</text>')
    losses = [c.loss for c, *_ in drawn]
    gradients = [c.gradient for c, *_ in drawn]
    for x0, title, values, kept in (
        (LEFT, "added to the batch" if curves[0].in_batch else "loss", losses, clipped(drawn)),
        (LEFT + WIDTH + GAP, "gradient on the true class's logit", gradients, gradients),
    ):
        parts += panel(x0, y0, title, kept)
        low, high, _ = axis(kept)
        for (c, colour, dash, width), ys in zip(drawn, values, strict=True):
            points = [
                (x0 + WIDTH * p, y0 + HEIGHT * (high - y) / (high - low))
                for p, y in zip(c.p, ys, strict=True)
            ]
            for piece in visible(points, y0, y0 + HEIGHT):
                parts.append(stroke(path(simplified(piece)), colour, dash, width))
    return f'<figure style="margin:1em 0">{"".join(parts)}</svg></figure>'


def legend(names: Sequence[tuple[Any, ...]]) -> list[list[tuple[int, tuple[Any, ...]]]]:
    """The rows of the legend: each entry with its place."""
    rows: list[list[tuple[int, tuple[Any, ...]]]] = [[]]
    x = 0
    for item in names:
        needed = 50 + round(6.3 * len(item[0]))
        if rows[-1] and x + needed > 2 * WIDTH + GAP:
            rows.append([])
            x = 0
        rows[-1].append((x, item))
        x += needed
    return rows


def clipped(drawn: Sequence[tuple[Curve, Any, Any, Any]]) -> list[list[float]]:
    """The losses where p is not close to 0, from which the axis is made."""
    return [[y for p, y in zip(c.p, c.loss, strict=True) if p >= SHOWN] for c, *_ in drawn]


def axis(values: Sequence[Sequence[float]]) -> tuple[float, float, list[float]]:
    """Both ends of an axis that holds the values and 0, and its round ticks."""
    low = min(0.0, *(min(ys) for ys in values))
    high = max(0.0, *(max(ys) for ys in values))
    span = (high - low) or 1.0
    size = 10 ** math.floor(math.log10(span / 4))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if span / (size * factor) <= 5)
    pad = 0.03 * span
    low, high = low - (pad if low < 0 else 0), high + pad
    ticks = [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return low, high, ticks


def panel(x0: float, y0: float, title: str, values: Sequence[Sequence[float]]) -> list[str]:
    """Grid, ticks and names of one panel."""
    low, high, ticks = axis(values)
    parts = []
    for tick in ticks:
        y = y0 + HEIGHT * (high - tick) / (high - low)
        opacity = "0.45" if tick == 0 else "0.13"
        parts.append(f'<path d="M{x0} {y:.1f}h{WIDTH}" stroke="currentColor" stroke-opacity="{opacity}"/>')
        parts.append(
            f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor" fill-opacity="0.75">'
            f"{number(tick)}</text>"
        )
    for p in (0, 0.25, 0.5, 0.75, 1):
        x = x0 + WIDTH * p
        parts.append(
            f'<path d="M{x:.1f} {y0}v{HEIGHT}" stroke="currentColor" stroke-opacity="{0.45 if p == 0 else 0.13}"/>'
        )
        parts.append(
            f'<text x="{x:.1f}" y="{y0 + HEIGHT + 15}" text-anchor="middle" fill="currentColor" fill-opacity="0.75">'
            f"{p:g}</text>"
        )
    parts.append(
        f'<text x="{x0 + WIDTH / 2}" y="{y0 + HEIGHT + 28}" text-anchor="middle" fill="currentColor" '
        'fill-opacity="0.75" font-style="italic">p</text>'
    )
    parts.append(f'<text x="{x0}" y="{y0 - 8}" fill="currentColor" font-weight="600">{escape(title)}</text>')
    return parts


def number(value: float) -> str:
    """A tick's label with a real minus sign."""
    return f"{value:.6g}".replace("-", "−") if value else "0"


def visible(
    points: Sequence[tuple[float, float]], top: float, bottom: float
) -> list[list[tuple[float, float]]]:
    """The runs of points between top and bottom, cut at the border."""
    runs: list[list[tuple[float, float]]] = [[]]
    for before, point in zip([None, *points[:-1]], points, strict=True):
        inside = top <= point[1] <= bottom
        if before is not None and inside != (top <= before[1] <= bottom):
            border = top if min(point[1], before[1]) < top else bottom
            share = (border - before[1]) / (point[1] - before[1])
            runs[-1].append((before[0] + share * (point[0] - before[0]), border))
            if not inside:
                runs.append([])
        if inside:
            runs[-1].append(point)
    return [run for run in runs if len(run) > 1]


def simplified(points: list[tuple[float, float]], tolerance: float = 0.12) -> list[tuple[float, float]]:
    """Fewer points, none of the left-out ones further than the tolerance from the line (Douglas and Peucker)."""
    if len(points) < 3:
        return points
    (x1, y1), (x2, y2) = points[0], points[-1]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    far = [abs((x2 - x1) * (y1 - y) - (x1 - x) * (y2 - y1)) / length for x, y in points]
    worst = max(range(len(points)), key=far.__getitem__)
    if far[worst] <= tolerance:
        return [points[0], points[-1]]
    return simplified(points[: worst + 1], tolerance)[:-1] + simplified(points[worst:], tolerance)


def path(points: Sequence[tuple[float, float]]) -> str:
    """The `d` of an SVG path."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def stroke(d: str, colour: str, dash: str, width: float) -> str:
    """A line."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="{width:g}" stroke-linejoin="round"{dashes}/>'
