"""How far surrogates are from the true calibration error, by batch size and bandwidth.

    python benchmarks/surrogate_bias.py [--draw-only]

The synthetic source is right with probability confidence - error, exactly and everywhere, so that the true top-label
error is known. Each surrogate is averaged over many batches of one size; bias is that mean minus the truth. Writes
results/surrogate_bias.json, the figure and the table of docs/surrogates.md; --draw-only reads the results instead.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant import metrics
from calibrant.core.spec import build
from calibrant.data import Synthetic

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "surrogate_bias.json"
PAGE = ROOT / "docs" / "surrogates.md"
FIGURE = ROOT / "docs" / "surrogate-bias.svg"

CLASSES = 10
ERRORS = (0.0, 0.1)
SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 10_000)
SHOWN = (32, 128, 1024, 10_000)
BANDWIDTHS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
DRAWS = (400, 6)  # at most and at least
ROWS = 60_000  # rows for each size, within those limits
SURROGATES = {
    "sece": "surrogates",
    'sece(accuracy="hard")': "surrogates",
    "sece(leave_one_out=True)": "surrogates",
    "dece": "surrogates",
    "kde_ece": "surrogates",
    "sb_ece": "penalties",
    "mmce": "penalties",
    "ece(bins=15)": "metrics",
}
LINES = ("sece", "dece", "kde_ece", "sb_ece", "mmce", "ece(bins=15)")  # of the figure


def true_value(spec: str, error: float) -> float:
    """The value on infinitely many rows of a perfect estimator: |error|, on MMCE's own scale for MMCE."""
    if not spec.startswith("mmce") or error == 0:
        return abs(error)
    preds, _ = Synthetic(classes=CLASSES, error=error).draw(8000, seed=987_654)
    confidence = preds.logits.double().softmax(1).amax(1)
    kernel = (-(confidence[:, None] - confidence).abs() / build(spec, "penalties").width).exp()
    pairs = (kernel.sum() - len(confidence)) / (len(confidence) * (len(confidence) - 1))
    return abs(error) * math.sqrt(float(pairs))


def values(spec: str, kind: str, batches: list[Any]) -> np.ndarray:
    piece = build(spec, kind)
    with torch.no_grad():
        return np.array([float(metrics_value(piece, preds)) for preds in batches])


def metrics_value(piece: Any, preds: Any) -> float:
    result = piece(preds.logits, preds.labels)
    return result.value if isinstance(piece, metrics.metric.Metric) else result.item()


def measure() -> dict[str, Any]:
    records = []
    for error in ERRORS:
        source = Synthetic(classes=CLASSES, error=error)
        for n in SIZES:
            draws = max(DRAWS[1], min(DRAWS[0], ROWS // n))
            batches = [source.draw(n, seed=100_000 * n + i)[0] for i in range(draws)]
            wanted = dict(SURROGATES)
            if n in SHOWN:
                wanted |= {f"sece(bandwidth={h})": "surrogates" for h in BANDWIDTHS}
            for spec, kind in wanted.items():
                found, truth = values(spec, kind, batches), true_value(spec, error)
                records.append(
                    {
                        "surrogate": spec,
                        "error": error,
                        "n": n,
                        "draws": draws,
                        "true": round(truth, 6),
                        "mean": round(found.mean(), 6),
                        "std": round(found.std(ddof=1), 6),
                    }
                )
            print(f"error {error:g}, n = {n:,}: {draws} draws", flush=True)
    return {
        "command": "python benchmarks/surrogate_bias.py",
        "source": f"Synthetic(classes={CLASSES}, error=ERROR), truth shift, spread 2",
        "torch": torch.__version__,
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "records": records,
    }


class Found:
    """The records by surrogate, error and size."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.by_key = {(r["surrogate"], r["error"], r["n"]): r for r in records}

    def bias(self, spec: str, error: float, n: int) -> float:
        r = self.by_key[spec, error, n]
        return r["mean"] - r["true"]

    def uncertainty(self) -> float:
        """The largest standard error of what the table shows."""
        return max(r["std"] / math.sqrt(r["draws"]) for key, r in self.by_key.items() if key[2] in SHOWN)


def table(found: Found) -> str:
    head = [f"N = {n:,}" for n in SHOWN]
    lines = [
        "| surrogate | " + " | ".join([*head, *head]) + " |",
        "|---|" + "--:|" * (2 * len(SHOWN)),
        "| | " + " | ".join(["*calibrated*"] + [""] * 3 + ["*overconfident by 0.1*"] + [""] * 3) + " |",
    ]
    wide = [f"sece(bandwidth={h})" for h in (0.05, 0.2)]
    for spec in [*SURROGATES, *wide]:
        cells = [f"{found.bias(spec, error, n):+.3f}" for error in ERRORS for n in SHOWN]
        lines.append(f"| `{spec}` | " + " | ".join(cell.replace("-", "−") for cell in cells) + " |")
    worst = found.uncertainty()
    lines += [
        "",
        f"Mean over 6 to 400 batches minus the true value; standard errors are at most {worst:.3f}.",
    ]
    return "\n".join(lines)


COLOURS = {  # light, dark
    "sece": ("#3f51b5", "#9fa8ff"),
    "dece": ("#d2571b", "#ff9e64"),
    "kde_ece": ("#0b8a76", "#4fd6be"),
    "sb_ece": ("#a8328f", "#f29be0"),
    "mmce": ("#8a6d00", "#e5c453"),
    "ece(bins=15)": ("#5f6773", "#a9b1bd"),
}
SHADES = {  # the bandwidth panels: one colour, by size
    32: ("#9aa4e0", "#6a74bd"),
    128: ("#6f7dd6", "#8790e0"),
    1024: ("#4353b8", "#adb5f5"),
    10_000: ("#1b2670", "#e2e6ff"),
}
INK = {"paper": ("#ffffff", "#1c1f26"), "ink": ("#1d2530", "#eceff4"), "soft": ("#5b6470", "#a4adba")}
INK |= {"rule": ("#e4e7ec", "#333944"), "zero": ("#1d2530", "#eceff4")}
WIDTH, HEIGHT = 900, 752
PANEL = (362, 210)  # width and height of the plotting area
LEFT, TOP, ACROSS, DOWN = 72, 122, 440, 352
LOW, HIGH, STEP = -0.05, 0.40, 0.05


def name(key: str | int) -> str:
    return "c" + re.sub(r"\W", "", str(key))


def style() -> str:
    """Colours as classes, so that the reader's light or dark mode decides."""

    def rules(mode: int) -> str:
        fills = "".join(f".{k}{{fill:{v[mode]}}}" for k, v in INK.items())
        rule = f".rule{{stroke:{INK['rule'][mode]}}}.zero{{stroke:{INK['zero'][mode]}}}"
        lines = "".join(
            f".{name(k)}{{stroke:{v[mode]}}}.{name(k)}f{{fill:{v[mode]}}}"
            for k, v in (COLOURS | SHADES).items()
        )
        return fills + rule + lines

    fixed = "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}.line{fill:none;stroke-width:2}"
    fixed += ".line{stroke-linejoin:round;stroke-linecap:round}.dash{stroke-dasharray:5 4}"
    return f"<style>{fixed}{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"


def text(
    x: float,
    y: float,
    words: str,
    size: float = 12,
    ink: str = "soft",
    anchor: str = "start",
    bold: bool = False,
) -> str:
    look = f'font-size="{size}" class="{ink}" text-anchor="{anchor}"' + (' font-weight="600"' if bold else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{words}</text>'


def panel(
    column: int, row: int, title: str, ticks: list[float], labels: list[str], axis: str, lines: dict[Any, Any]
) -> list[str]:
    """One plotting area on a logarithmic x axis, with a zero line that says unbiased."""
    x0, y0 = LEFT + column * ACROSS, TOP + row * DOWN
    width, height = PANEL
    first, last = math.log(ticks[0]), math.log(ticks[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            x0 + 10 + (width - 20) * (math.log(x) - first) / (last - first),
            y0 + height * (HIGH - min(max(y, LOW), HIGH)) / (HIGH - LOW),
        )

    out = [text(x0, y0 - 14, title, 14, "ink", bold=True)]
    for i in range(round((HIGH - LOW) / STEP) + 1):
        value = LOW + i * STEP
        y = at(ticks[0], value)[1]
        kind = "zero" if abs(value) < 1e-9 else "rule"
        out.append(
            f'<line x1="{x0}" x2="{x0 + width}" y1="{y:.1f}" y2="{y:.1f}" class="{kind}" stroke-width="1"/>'
        )
        if i % 2:
            shown = "0" if kind == "zero" else f"{value:+.1f}"
            out.append(text(x0 - 9, y + 4, shown.replace("-", "−"), 12, anchor="end"))
    zero = at(ticks[0], 0)[1]
    out.append(text(x0 + 5, zero + 15, "unbiased", 11))
    for tick, label in zip(ticks, labels, strict=True):
        if not label:
            continue
        out.append(text(at(tick, 0)[0], y0 + height + 18, label, 12, anchor="middle"))
    out.append(text(x0 + width / 2, y0 + height + 38, axis, 12, anchor="middle"))
    for key, points in lines.items():
        spots = [at(x, y) for x, y in points]
        dash = " dash" if key == "ece(bins=15)" else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        out.append(f'<polyline points="{path}" class="line {name(key)}{dash}"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" class="{name(key)}f"/>' for x, y in spots]
    return out


def legend(y: float, entries: list[tuple[Any, str, int]]) -> list[str]:
    out, x = [], float(LEFT)
    for key, words, advance in entries:
        dash = " dash" if key == "ece(bins=15)" else ""
        out.append(f'<line x1="{x}" x2="{x + 20}" y1="{y - 4}" y2="{y - 4}" class="line {name(key)}{dash}"/>')
        out.append(text(x + 26, y, words, 12.5, "ink"))
        x += advance
    return out


def figure(found: Found) -> str:
    words = "Bias of differentiable calibration errors by batch size and bandwidth"
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    parts = [
        opening,
        style(),
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="paper"/>',
        text(LEFT, 36, "Bias: mean value of a batch minus the true calibration error", 17, "ink", bold=True),
    ]
    shown = {"ece(bins=15)": "ece, 15 hard bins"}
    advances = {"sece": 82, "dece": 82, "kde_ece": 102, "sb_ece": 98, "mmce": 92, "ece(bins=15)": 150}
    parts += legend(74, [(spec, shown.get(spec, spec), advances[spec]) for spec in LINES])
    sizes = [f"{n:,}" if n in (32, 128, 512, 2048, 10_000) else "" for n in SIZES]
    titles = ("A calibrated model", "A model overconfident by 0.1")
    for column, (error, title) in enumerate(zip(ERRORS, titles, strict=True)):
        lines = {spec: [(n, found.bias(spec, error, n)) for n in SIZES] for spec in LINES}
        parts += panel(column, 0, title, list(SIZES), sizes, "rows in the batch", lines)
    y = TOP + DOWN - 48
    parts += legend(y, [(n, f"sece, {n:,} rows", 146) for n in SHOWN])
    marks = [f"{h:g}" if h in (0.002, 0.01, 0.05, 0.2, 0.5) else "" for h in BANDWIDTHS]
    for column, (error, title) in enumerate(zip(ERRORS, titles, strict=True)):
        lines = {n: [(h, found.bias(f"sece(bandwidth={h})", error, n)) for h in BANDWIDTHS] for n in SHOWN}
        parts += panel(column, 1, title, list(BANDWIDTHS), marks, "bandwidth of sece", lines)
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draw-only", action="store_true", help="write figure and table from the stored results"
    )
    if not parser.parse_args().draw_only:
        result = measure()
        records = result.pop("records")
        lines = ",\n".join("  " + json.dumps(record) for record in records)
        head = json.dumps(result, indent=1)[:-2]
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(f'{head},\n "records": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    found = Found(json.loads(RESULTS.read_text(encoding="utf-8"))["records"])
    FIGURE.write_text(figure(found), encoding="utf-8")
    if PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        marked = re.compile(r"(<!-- table:surrogate-bias -->\n).*?(<!-- /table -->)", re.DOTALL)
        PAGE.write_text(marked.sub(lambda m: f"{m[1]}\n{table(found)}\n\n{m[2]}", page), encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
