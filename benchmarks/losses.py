"""Forward plus backward of every loss, penalty and surrogate, as a multiple of torch's cross-entropy in the same run.

    python benchmarks/losses.py [--device cuda [--graph [--compile]]] [--json PATH] [--write] [--limit 2.5]
    python benchmarks/losses.py --from PATH --write

Prints a Markdown table; --write puts it into docs/losses.md (tables losses-cpu, losses-cuda-graph).
--json keeps the numbers and what measured them; --from reads them instead of measuring, so that
one machine measures and another writes the table.
Each round times cross-entropy before and after every piece, so that what else runs on the machine slows both; the table
has the median ratio. With --graph a step is captured in a CUDA graph and replayed; with --compile each piece, and
cross-entropy too, goes through torch.compile before, and the table has the pieces of single rows only. --limit fails if
one of those is slower than that at 1,024 x 1,000.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.objective import KINDS, PerSample
from calibrant.core.registry import Entry, describe
from tables import markdown, rewrite

SIZES = [(n, k) for n in (128, 1024) for k in (10, 100, 1000)]
LIMITED = (1024, 1000)
LONG = 10  # times what is spent on cross-entropy is the most for one number
Step = Callable[[], object]
Loss = Callable[[Tensor, Tensor], Tensor]


def batch(n: int, k: int, device: str) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(n, k, generator=g)
    labels = (logits / 1.5).softmax(1).multinomial(1, generator=g)[:, 0]
    return logits.to(device), labels.to(device)


def step(loss: Loss, logits: Tensor, labels: Tensor) -> Step:
    """One forward and one backward pass."""
    z = logits.detach().clone().requires_grad_()
    return lambda: torch.autograd.grad(loss(z, labels), z)


def compiled(loss: Loss) -> Loss:
    """The same loss as one compiled function, without a gap that Python would have to bridge."""
    made: Loss = torch.compile(loss, fullgraph=True, dynamic=False)
    return made


def captured(work: Step) -> Step:
    """The same step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def milliseconds(work: Step, repeats: int, device: str) -> float:
    """Mean time of one call; on a GPU by events, so that it is the GPU's time."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        return 1000 * (time.perf_counter() - start) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def ratios(
    works: dict[str, Step], base: Step, device: str, rounds: int, budget_ms: float
) -> dict[str, float]:
    """Median over rounds of a step's time over the mean of cross-entropy's just before and just after it."""
    quick = min(milliseconds(base, 5, device) for _ in range(5))
    repeats = max(1, min(200, int(budget_ms / max(quick, 1e-3))))
    found: dict[str, list[float]] = {name: [] for name in works}
    times = {}
    for name, work in works.items():
        work()
        most = int(LONG * budget_ms / max(milliseconds(work, 2, device), 1e-3))
        times[name] = max(1, min(repeats, most))  # what is a thousand times slower is seen in one call
    for _ in range(rounds):
        before = milliseconds(base, repeats, device)
        for name, work in works.items():
            taken = milliseconds(work, times[name], device)
            after = milliseconds(base, repeats, device)
            found[name].append(2 * taken / (before + after))
            before = after
    return {name: statistics.median(values) for name, values in found.items()}


def measure(entries: Sequence[Entry], options: argparse.Namespace) -> dict[str, Any]:
    """The ratios of each piece, size after size, and what cross-entropy took, with the machine that it was on."""
    torch._dynamo.config.recompile_limit = (
        1000  # what is compiled here shares one place, which holds 8 by default
    )
    device, wrap = options.device, captured if options.graph else (lambda work: work)
    ready: Callable[[Loss], Loss] = compiled if options.compile else (lambda loss: loss)
    table: dict[str, list[float]] = {entry.name: [] for entry in entries}
    base_us = []
    for n, k in options.sizes:
        torch.compiler.reset()  # a compiled piece has one size
        logits, labels = batch(n, k, device)
        works = {entry.name: wrap(step(ready(entry.piece()), logits, labels)) for entry in entries}
        base = wrap(step(ready(F.cross_entropy), logits, labels))
        for name, ratio in ratios(works, base, device, options.rounds, options.budget_ms).items():
            table[name].append(ratio)
        base_us.append(1000 * min(milliseconds(base, 20, device) for _ in range(5)))
        print(f"{n} x {k}: cross-entropy takes {base_us[-1]:.1f} us", file=sys.stderr)
    return {
        "table": f"losses-{device}" + ("-compile" if options.compile else "-graph" if options.graph else ""),
        "machine": torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "sizes": [list(size) for size in options.sizes],
        "cross_entropy_us": base_us,
        "ratios": table,
    }


def size(text: str) -> tuple[int, int]:
    """`1024x1000` as rows and classes."""
    n, k = text.split("x")
    return int(n), int(k)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--graph", action="store_true", help="replay each step as a CUDA graph")
    parser.add_argument("--compile", action="store_true", help="compile each piece that is a mean over rows")
    parser.add_argument("--sizes", nargs="*", type=size, default=SIZES, metavar="ROWSxCLASSES")
    parser.add_argument("--json", type=Path, metavar="PATH", help="keep the numbers in this file")
    parser.add_argument("--from", dest="known", type=Path, metavar="PATH", help="numbers that --json kept")
    parser.add_argument("--write", action="store_true", help="put the table into docs/losses.md")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--limit", type=float, help="the largest ratio that a per-row loss may have")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--budget-ms", type=float, default=4.0, help="how long to repeat cross-entropy for one number"
    )
    options = parser.parse_args()
    if options.graph and options.device != "cuda":
        parser.error("--graph needs --device cuda")
    kinds = {entry.name: entry for kind in reversed(KINDS) for entry in describe(kind)}
    entries = [entry for kind in KINDS for entry in describe(kind) if kinds[entry.name] == entry]
    rowwise = {entry.name for entry in entries if isinstance(entry.piece(), PerSample)}
    entries = [entry for entry in entries if not options.only or entry.name in options.only]
    if options.compile:
        entries = [entry for entry in entries if entry.name in rowwise]
    found = json.loads(options.known.read_text()) if options.known else measure(entries, options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    head = ["piece", *(f"{n:,} x {k:,}" for n, k in found["sizes"])]
    rows = [[f"`{name}`", *(f"{ratio:.2f}" for ratio in row)] for name, row in found["ratios"].items()]
    took = ["*cross-entropy, µs*", *(f"{us:.1f}" for us in found["cross_entropy_us"])]
    shown = markdown(head, [*rows, took])
    print(f"{found['machine']}, torch {found['torch']}", file=sys.stderr)
    print(shown)
    if options.write:
        rewrite("losses.md", found["table"], shown)
    if options.limit is not None:
        column = found["sizes"].index(list(LIMITED))
        slow = {
            name: row[column]
            for name, row in found["ratios"].items()
            if name in rowwise and row[column] > options.limit
        }
        if slow:
            raise SystemExit(f"slower than {options.limit:g} times cross-entropy at {LIMITED}: {slow}")


if __name__ == "__main__":
    main()
