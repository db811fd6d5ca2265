"""Forward plus backward of every loss, penalty and surrogate, as a multiple of torch's cross-entropy in the same run.

    python benchmarks/losses.py [--write] [--device cuda [--graph]] [--only NAME ...] [--limit 2.5]

Prints a Markdown table; --write puts it into docs/losses.md (tables losses-cpu, losses-cuda, losses-cuda-graph).
Each round times cross-entropy before and after every piece, so that what else runs on the machine slows both; the table
has the median ratio. With --graph a step is captured in a CUDA graph and replayed. --limit fails if a per-row loss is
slower than that at 1,024 x 1,000.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.objective import KINDS, PerSample
from calibrant.core.registry import Entry, describe
from tables import markdown, rewrite

SIZES = [(n, k) for n in (128, 1024) for k in (10, 100, 1000)]
LIMITED = (1024, 1000)
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
    for work in works.values():
        work()
    for _ in range(rounds):
        before = milliseconds(base, repeats, device)
        for name, work in works.items():
            taken = milliseconds(work, repeats, device)
            after = milliseconds(base, repeats, device)
            found[name].append(2 * taken / (before + after))
            before = after
    return {name: statistics.median(values) for name, values in found.items()}


def measure(
    entries: Sequence[Entry], device: str, graph: bool, rounds: int, budget_ms: float
) -> dict[str, list[float]]:
    """The ratios of each piece, size after size."""
    wrap = captured if graph else (lambda work: work)
    table: dict[str, list[float]] = {entry.name: [] for entry in entries}
    for n, k in SIZES:
        logits, labels = batch(n, k, device)
        works = {entry.name: wrap(step(entry.piece(), logits, labels)) for entry in entries}
        base = wrap(step(F.cross_entropy, logits, labels))
        for name, ratio in ratios(works, base, device, rounds, budget_ms).items():
            table[name].append(ratio)
        print(
            f"{n} x {k}: cross-entropy takes {1000 * milliseconds(base, 20, device):.0f} us", file=sys.stderr
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--graph", action="store_true", help="replay each step as a CUDA graph")
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
    entries = [entry for entry in entries if not options.only or entry.name in options.only]
    table = measure(entries, options.device, options.graph, options.rounds, options.budget_ms)
    head = ["piece", *(f"{n:,} x {k:,}" for n, k in SIZES)]
    shown = markdown(head, [[f"`{name}`", *(f"{ratio:.2f}" for ratio in row)] for name, row in table.items()])
    print(shown)
    if options.write:
        rewrite("losses.md", f"losses-{options.device}" + ("-graph" if options.graph else ""), shown)
    if options.limit is not None:
        column = SIZES.index(LIMITED)
        rowwise = {entry.name for entry in entries if isinstance(entry.piece(), PerSample)}
        slow = {
            name: row[column]
            for name, row in table.items()
            if name in rowwise and row[column] > options.limit
        }
        if slow:
            raise SystemExit(f"slower than {options.limit:g} times cross-entropy at {LIMITED}: {slow}")


if __name__ == "__main__":
    main()
