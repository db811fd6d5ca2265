"""How often the 95 % intervals cover the truth, and how wide they are: `make coverage` writes the table of the docs.

The truth is known: predictions come from the synthetic source, and a metric's population value is computed on many
rows with every label weighted by its true probability, which leaves no label noise. For each cell (classes, rows,
true error, shape of the error) the table shows the share of draws whose interval covers that value, the mean width,
and its ratio to the width of the central 95 % of the metric's own values over the same draws: what an oracle that
knew the sampling distribution would give.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from calibrant import Predictions, TopLabel, evaluate, metric
from calibrant.data import Synthetic
from calibrant.metrics.scores import Scores
from tables import markdown, rewrite

METRICS = ("ece", "rmsce", "ace", "debiased_ece", "error", "nll", "brier", "overconfidence", "auroc", "aurc")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "coverage.json"
POPULATION_ROWS = 400_000


@dataclass(frozen=True)
class Cell:
    """One source and one number of rows."""

    classes: int
    rows: int
    error: float
    truth: str

    @property
    def source(self) -> Synthetic:
        return Synthetic(classes=self.classes, error=self.error, truth=self.truth)  # type: ignore[arg-type]


def cells(rows: Sequence[int]) -> list[Cell]:
    """Every cell of the table; without an error there is one shape only."""
    return [
        Cell(k, n, error, truth)
        for k in (3, 10)
        for n in rows
        for error in (0.0, 0.02, 0.10)
        for truth in (("shift", "temperature") if error else ("shift",))
    ]


def population(source: Synthetic) -> dict[str, float]:
    """Each metric on many rows, every outcome weighted by its true probability."""
    predictions, posterior = source.draw(POPULATION_ROWS, seed=999)
    confidence, predicted = predictions.logits.softmax(1).max(1)
    right = posterior.gather(1, predicted[:, None])[:, 0]
    correct = torch.cat([torch.ones_like(right), torch.zeros_like(right)])
    pairs = TopLabel(confidence.repeat(2), correct.long())
    top = Scores(pairs, torch.cat([right, 1 - right]))
    log_p = predictions.logits.double().log_softmax(1)
    p = log_p.exp()
    values = {
        "nll": float(-(posterior * log_p).sum(1).mean()),
        "brier": float(((p**2).sum(1) - 2 * (posterior * p).sum(1) + 1).mean()),
    }
    return {name: values[name] if name in values else metric(name).value(top) for name in METRICS}


def measure(cell: Cell, draws: int) -> list[dict[str, object]]:
    """Coverage and width of every metric in one cell."""
    torch.set_num_threads(1)
    truth = population(cell.source)
    values = {name: np.empty(draws) for name in METRICS}
    ends = {name: np.empty((draws, 2)) for name in METRICS}
    for seed in range(draws):
        predictions, _ = cell.source.draw(cell.rows, seed=seed)
        for name, found in evaluate(
            Predictions(predictions.logits, predictions.labels), METRICS, seed=seed
        ).items():
            values[name][seed] = found.value
            ends[name][seed] = found.ci if found.ci is not None else (np.nan, np.nan)
    rows: list[dict[str, object]] = []
    for name in METRICS:
        low, high = ends[name].T
        oracle = float(np.subtract(*np.quantile(values[name], [0.975, 0.025])))
        covered = (low <= truth[name] + 1e-12) & (truth[name] <= high + 1e-12)
        rows.append(
            {
                "metric": name,
                **asdict(cell),
                "draws": draws,
                "population": truth[name],
                "coverage": float(covered.mean()),
                "above": float((low > truth[name] + 1e-12).mean()),
                "width": float((high - low).mean()),
                "oracle": oracle,
                "ratio": float((high - low).mean()) / oracle if oracle else float("nan"),
            }
        )
    return rows


def tables(rows: list[dict[str, object]]) -> tuple[str, str]:
    """Worst cells by metric, and every cell of the calibration errors."""
    summary = []
    for name in METRICS:
        own = [r for r in rows if r["metric"] == name]
        if own:
            coverage = [float(str(r["coverage"])) for r in own]
            ratio = [float(str(r["ratio"])) for r in own]
            worst = f"{100 * min(coverage):.1f} %"
            summary.append([name, f"{100 * float(np.mean(coverage)):.1f} %", worst, f"{max(ratio):.2f}"])
    full = []
    for cell in dict.fromkeys((r["classes"], r["rows"], r["error"], r["truth"]) for r in rows):
        line = [str(cell[0]), f"{cell[1]:,}", f"{float(str(cell[2])):g}", str(cell[3])]
        for name in METRICS[:4]:
            (r,) = [
                r
                for r in rows
                if (r["classes"], r["rows"], r["error"], r["truth"]) == cell and r["metric"] == name
            ]
            line.append(f"{100 * float(str(r['coverage'])):.1f} % / {float(str(r['ratio'])):.2f}")
        full.append(line)
    head = ["classes", "rows", "true error", "shape", *METRICS[:4]]
    return markdown(["metric", "mean coverage", "worst cell", "widest ratio"], summary), markdown(head, full)


def main() -> None:
    """Measure every cell, keep the numbers in results/coverage.json, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 2000, 10_000])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--try-out", action="store_true", help="print only: leave results and docs alone")
    wanted = parser.parse_args()
    began = time.monotonic()
    rows: list[dict[str, object]] = []
    todo = cells(wanted.rows)
    with ProcessPoolExecutor(wanted.workers) as pool:
        running = {pool.submit(measure, cell, wanted.draws): cell for cell in reversed(todo)}
        for done, future in enumerate(as_completed(running), 1):
            rows += future.result()
            for r in future.result():
                mark = "  <--" if float(str(r["coverage"])) < 0.9 or float(str(r["ratio"])) > 1.5 else ""
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in r.items()}, mark)
            print(f"{done} of {len(todo)} cells, {time.monotonic() - began:.0f} s", flush=True)
    order = {cell: i for i, cell in enumerate(todo)}
    rows.sort(
        key=lambda r: (
            order[Cell(r["classes"], r["rows"], r["error"], r["truth"])],
            METRICS.index(str(r["metric"])),
        )
    )  # type: ignore[arg-type]
    summary, full = tables(rows)
    print(summary, full, sep="\n\n")
    if not wanted.try_out:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        rewrite("uncertainty.md", "coverage", summary)
        rewrite("uncertainty.md", "coverage-cells", full)


if __name__ == "__main__":
    main()
