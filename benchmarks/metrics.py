"""Speed and memory of the metrics against peers in the same run: `make bench` writes the tables of docs/benchmarks.md.

Peers get what they ask for. Where they take probabilities, the softmax is not timed for them, but it is for us: our
metrics start from logits. `ece from logits` gives torchmetrics the logits, which it turns into probabilities itself.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import Predictions, TopLabel, evaluate, metric
from calibrant.metrics.calibration_error import CalibrationError
from calibrant.metrics.evaluate import DEFAULT
from calibrant.metrics.metric import Metric, estimates
from calibrant.metrics.scores import Scores
from tables import markdown, rewrite

warnings.filterwarnings("ignore")
HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [p for p in sys.path if p != HERE]  # peers import a package called coverage, which is not ours

SIZES = [(10_000, 10), (10_000, 100), (50_000, 1000), (1_000_000, 10), (1_000_000, 100)]
SORTED = ("ace(bins=15)", "debiased_ece(bins=15)", "auroc")
ONE_PASS = [s for s in DEFAULT if s not in (*SORTED, "classwise_ece(bins=15)")]
BINNED = ["ece", "mce", "rmsce", "ace", "debiased_ece", "top_label_ece", "classwise_ece"]
OTHERS = ("rmsce", "top_label_ece", "sece", "kde_ece", "aurc")  # what is not reported by default
FROM_CONFIDENCES = ("smece", "auroc")  # peers start from (confidence, correct), and so does ours
Timed = Callable[[], Any]


def data(n: int, k: int) -> tuple[Tensor, Tensor]:
    """Overconfident logits: labels are drawn from the softmax of the logits divided by 1.5."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((n, k), generator=generator).mul_(3)
    ladder = (logits / 1.5).softmax(1).cumsum_(1)
    labels = torch.searchsorted(ladder, torch.rand((n, 1), generator=generator) * ladder[:, -1:])[:, 0]
    return logits, labels.clamp_(max=k - 1)


def median_ms(work: Timed, budget: float = 6.0, most: int = 15) -> float:
    """Median time after one call to warm up, within a budget of seconds but at least three times."""
    work()
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < most and (len(taken) < 3 or time.perf_counter() - began < budget):
        start = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken)


def peers(name: str, logits: Tensor, probs: Tensor, labels: Tensor) -> dict[str, Timed]:
    """What other libraries have under the meaning of one of our metrics."""
    import netcal.metrics
    import probmetrics.metrics
    import pycalib.metrics
    import relplot
    import torchmetrics.functional.classification as tm
    from sklearn.metrics import roc_auc_score

    k = probs.shape[1]
    p, y = probs.numpy(), labels.numpy()
    conf, predicted = probs.max(1)
    c, a = conf.numpy(), (predicted == labels).numpy()
    one_hot = np.eye(k)[y] if name == "classwise_ece" and len(y) * k <= 10_000_000 else None
    found: dict[str, dict[str, Timed]] = {
        "ece": {
            "torchmetrics, from logits": lambda: tm.multiclass_calibration_error(
                logits, labels, k, n_bins=15
            ),
            "torchmetrics": lambda: tm.multiclass_calibration_error(probs, labels, k, n_bins=15),
            "netcal": lambda: netcal.metrics.ECE(15).measure(p, y),
            "probmetrics": lambda: probmetrics.metrics.Metrics.from_names(
                ["ece-15"]
            ).compute_all_from_labels_logits(labels, logits),
        },
        "mce": {
            "torchmetrics": lambda: tm.multiclass_calibration_error(probs, labels, k, n_bins=15, norm="max"),
            "netcal": lambda: netcal.metrics.MCE(15).measure(p, y),
        },
        "rmsce": {
            "torchmetrics": lambda: tm.multiclass_calibration_error(probs, labels, k, n_bins=15, norm="l2")
        },
        "ace": {"netcal": lambda: netcal.metrics.ECE(15, equal_intervals=False).measure(p, y)},
        "smece": {"relplot": lambda: relplot.smECE(c, a)},
        "auroc": {
            "torchmetrics": lambda: tm.binary_auroc(conf, (predicted == labels).long()),
            "scikit-learn": lambda: roc_auc_score(a, c),
        },
        "classwise_ece": {"pycalib": lambda: pycalib.metrics.classwise_ECE(one_hot, p, bins=15)}
        if one_hot is not None
        else {},
    }
    return found.get(name, {})


def value_table(sizes: list[tuple[int, int]], budget: float) -> None:
    """Our time from logits, each peer's, and the ratio to the fastest of them."""
    head = ["metric", "rows x classes", "calibrant, ms", "fastest peer, ms", "peer", "peer / calibrant"]
    rows, from_logits = [], []
    for n, k in sizes:
        logits, labels = data(n, k)
        probs = logits.softmax(1)
        confidence, predicted = probs.max(1)
        pairs = TopLabel(confidence, predicted == labels)
        for name in ("ece", "mce", "rmsce", "ace", "classwise_ece", "smece", "auroc"):
            ours = metric(name)
            if name in FROM_CONFIDENCES:
                mine = median_ms(lambda ours=ours, pairs=pairs: ours.value(Scores(pairs)), budget)
            else:
                mine = median_ms(partial(ours, logits, labels), budget)
            taken = {}
            for peer, work in peers(name, logits, probs, labels).items():
                try:
                    taken[peer] = median_ms(work, budget)
                except Exception as error:
                    print(
                        f"  {peer} {name} {n} x {k}: {type(error).__name__}: {str(error)[:100]}", flush=True
                    )
            if "torchmetrics, from logits" in taken:
                other = taken.pop("torchmetrics, from logits")
                row = [f"{n:,} x {k:,}", f"{mine:.2f}", f"{other:.1f}", f"{other / mine:.1f}"]
                from_logits.append(row)
            if taken:
                best = min(taken, key=lambda peer: taken[peer])
                row = [name, f"{n:,} x {k:,}", f"{mine:.2f}", f"{taken[best]:.2f}", best]
                rows.append([*row, f"{taken[best] / mine:.1f}"])
            print(name, n, k, f"{mine:.2f}", {peer: round(t, 2) for peer, t in taken.items()}, flush=True)
        del logits, labels, probs
        gc.collect()
    rewrite("benchmarks.md", "values", markdown(head, rows))
    head = ["rows x classes", "calibrant, ms", "torchmetrics, ms", "ratio"]
    rewrite("benchmarks.md", "ece-from-logits", markdown(head, from_logits))


def cheapest(logits: Tensor) -> None:
    """What the default metrics are held against."""
    logits.logsumexp(1)
    logits.max(dim=1)


def together(metrics: list[Metric], predictions: Predictions) -> None:
    """Values of several metrics from one pass."""
    estimates(metrics, Scores(predictions))


def defaults_table(sizes: list[tuple[int, int]], budget: float) -> None:
    """The default metrics that need one pass, together, against logsumexp plus max."""
    rows = []
    for n, k in sizes:
        logits, labels = data(n, k)
        predictions = Predictions(logits, labels)
        chosen = [metric(s) for s in ONE_PASS]
        plain = [m for m in chosen if type(m).__name__ != "SmECE"]

        floor = median_ms(partial(cheapest, logits), budget)
        mine = median_ms(partial(together, chosen, predictions), budget)
        without = median_ms(partial(together, plain, predictions), budget)
        row = [
            f"{n:,} x {k:,}",
            f"{floor:.2f}",
            f"{mine:.2f}",
            f"{mine / floor:.2f}",
            f"{without / floor:.2f}",
        ]
        rows.append(row)
        print("defaults", *row, flush=True)
    head = [
        "rows x classes",
        "logsumexp + max, ms",
        f"{len(ONE_PASS)} metrics, ms",
        "ratio",
        "ratio without smece",
    ]
    rewrite("benchmarks.md", "defaults", markdown(head, rows))


def null_table() -> None:
    """1,000 redraws of all binned metrics against their values, at 10,000 x 10."""
    logits, labels = data(10_000, 10)
    predictions = Predictions(logits, labels)
    chosen = [metric(s) for s in BINNED]
    values = median_ms(lambda: estimates(chosen, Scores(predictions)))

    def redraw() -> None:
        for found in estimates(chosen, Scores(predictions)):
            assert found.null is not None
            assert found.null.redraws == CalibrationError.redraws

    nulls = median_ms(redraw)
    row = [", ".join(BINNED), f"{values:.2f}", f"{nulls:.0f}", f"{nulls / values:.0f}"]
    print("nulls", *row, flush=True)
    head = ["metrics, 10,000 x 10", "values, ms", "with 1,000 redraws, ms", "ratio"]
    rewrite("benchmarks.md", "nulls", markdown(head, [row]))


def whole(logits: Tensor, labels: Tensor) -> None:
    """What `calibrant evaluate` computes."""
    for found in evaluate(Predictions(logits, labels)).values():
        _ = found.ci, found.null


def evaluate_table(budget: float) -> None:
    """A whole default evaluation with every interval and null."""
    rows = []
    for n, k in SIZES[:3]:
        logits, labels = data(n, k)
        once = median_ms(partial(metric("ece"), logits, labels), budget)
        taken = median_ms(partial(whole, logits, labels), budget)
        row = [f"{n:,} x {k:,}", f"{taken / 1000:.2f}", f"{once:.2f}", f"{taken / once:.0f}"]
        rows.append(row)
        print("evaluate", *row, flush=True)
    head = ["rows x classes", "default evaluate, s", "one ece, ms", "ratio"]
    rewrite("benchmarks.md", "evaluate", markdown(head, rows))


def peak_mb(spec: str, n: int, k: int) -> float:
    """Peak resident memory of one metric above the loaded logits, in a process of its own."""
    code = f"""
import sys, torch
from pathlib import Path
sys.path.append({HERE!r})
from metrics import data
from calibrant import metric
m = metric({spec!r})
m(*data(2000, 10))
logits = torch.randn({n}, {k}); labels = torch.randint(0, {k}, ({n},))
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
before = memory("VmRSS:")
m(logits, labels)
print(memory("VmHWM:") - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory_table(sizes: list[tuple[int, int]]) -> None:
    """Extra memory of each metric at the largest size."""
    n, k = sizes[-1]
    rows = [[spec, f"{peak_mb(spec, n, k):.0f}"] for spec in (*DEFAULT, *OTHERS)]
    print("memory", rows, flush=True)
    rewrite("benchmarks.md", "memory", markdown(["metric", f"peak extra MB at {n:,} x {k}"], rows))


def main() -> None:
    """Run all of it, or some with --only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["values", "defaults", "nulls", "evaluate", "memory"])
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for each timing")
    wanted = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    steps = {
        "values": lambda: value_table(SIZES, wanted.budget),
        "defaults": lambda: defaults_table(SIZES[2:], wanted.budget),
        "nulls": null_table,
        "evaluate": lambda: evaluate_table(wanted.budget),
        "memory": lambda: memory_table(SIZES),
    }
    for name, step in steps.items():
        if wanted.only in (None, name):
            step()


if __name__ == "__main__":
    main()
