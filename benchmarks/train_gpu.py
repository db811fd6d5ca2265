"""Seconds of an epoch on a GPU, against a plain PyTorch loop in the same run and against arithmetic itself.

    python benchmarks/train_gpu.py [--model resnet18] [--batch 128 512] [--json PATH]
    python benchmarks/train_gpu.py --from PATH    # put what was measured elsewhere into docs/training.md

45,000 random images of CIFAR's shape: what they show does not change the time. The plain loop is what a tutorial has:
a DataLoader with 8 workers, crops and flips on the CPU, float32 with TF32 convolutions, a loss read at every step.
The floor is the arithmetic of forward and backward at the rate that a large bfloat16 product reaches here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core.samples import InputShape, Published, Samples
from calibrant.train.loop import _global_state
from calibrant.train.measure import predict
from calibrant.train.parallel import World
from calibrant.train.recipe import Recipe
from calibrant.train.run import Run
from calibrant.train.session import Session, open_session
from calibrant.train.step import Engine, executed
from tables import markdown, rewrite

DEVICE = torch.device("cuda")
TRAIN, TEST = 45_000, 10_000


def images(rows: int, first: int) -> Samples:
    """Random pixels and labels."""
    g = torch.Generator().manual_seed(first)
    pixels = torch.randint(0, 256, (rows, 3, 32, 32), generator=g, dtype=torch.uint8)
    return Samples(pixels, torch.randint(0, 10, (rows,), generator=g), torch.arange(first, first + rows))


def published() -> Published:
    """A dataset of CIFAR-10's shape."""
    names = tuple(str(c) for c in range(10))
    return Published(
        "random", names, InputShape("image", (3, 32, 32)), images(50_000, 0), images(TEST, 50_000)
    )


def session(model: str, batch: int, loss: str) -> Session:
    """Our session on it, 45,000 rows of train."""
    run = Run(model=model, loss=loss, split="9:1", recipe=Recipe(epochs=1, batch=batch, nesterov=True))
    return open_session(run, published(), run.network, DEVICE, World(), mirrored=True)


def seconds(work: Callable[[], object], times: int) -> float:
    """The fastest of some calls, the device's work included."""
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


def ours(model: str, batch: int, engine: Engine, epochs: int, loss: str = "ce") -> dict[str, float]:
    """Start-up, the training part of an epoch, and the evaluation of val and test, in seconds."""
    made = session(model, batch, loss)
    used = torch.cuda.memory_allocated()
    torch.cuda.synchronize()
    began = time.perf_counter()
    work = executed(made.step, engine)
    torch.cuda.synchronize()
    start_up = time.perf_counter() - began
    made.step.rates.fill_(0.01)

    def epoch() -> None:
        steps = made.step.feed.begin(0, 1)
        made.step.tally.begin(1)
        for _ in range(steps):
            work()
        float(made.step.tally.loss)

    def evaluation() -> None:
        for part in (made.splits.val, made.splits.test):
            predict(made.predictor, made.preparation, part, half=made.step.half)

    epoch()
    evaluation()
    train, evaluate = seconds(epoch, epochs), seconds(evaluation, 3)
    steps = TRAIN // batch
    found = {"start_up": start_up, "epoch": train, "evaluation": evaluate, "step_ms": 1000 * train / steps}
    found["data_mb"] = sum(p.inputs.numel() for p in vars(made.splits).values()) / 1e6
    found["allocated_mb"] = used / 1e6
    return found


def profile(model: str, batch: int, engine: Engine) -> list[tuple[str, float]]:
    """Where the device's time of a step goes, by kind of kernel, in milliseconds."""
    made = session(model, batch, "ce")
    work = executed(made.step, engine)
    made.step.feed.begin(0, 1)
    steps = 50
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            work()
        torch.cuda.synchronize()
    kinds = {
        "convolutions": ("conv", "xmma", "cutlass", "gemm", "wgrad", "dgrad", "fprop", "sm90", "implicit"),
        "optimiser": ("fused_sgd", "fusedoptimizer", "multi_tensor", "FusedSgd"),
        "batch norm, relu, sums": ("batch_norm", "bn_", "triton", "elementwise", "reduce", "vectorized"),
        "copies and casts": ("copy", "cast", "memcpy", "memset", "fill", "nchw"),
    }
    totals: dict[str, float] = {}
    for event in found.key_averages():
        name = event.key.lower()
        kind = next((k for k, words in kinds.items() if any(w.lower() in name for w in words)), "other")
        totals[kind] = totals.get(kind, 0.0) + event.self_device_time_total / 1000 / steps
    return sorted(totals.items(), key=lambda item: -item[1])


class Plain(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images one by one, cropped and flipped on the CPU."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.mean = torch.tensor([0.49, 0.48, 0.45]).view(3, 1, 1)

    def __len__(self) -> int:
        return TRAIN

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = nn.functional.pad(self.samples.inputs[row], (4, 4, 4, 4))
        top, left = (int(v) for v in torch.randint(0, 9, (2,)))
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image.float() / 255 - self.mean) / 0.25, int(self.samples.labels[row])


def plain_loop(model: str, batch: int) -> float:
    """Seconds of the second epoch of a plain loop."""
    run = Run(model=model)
    torch.backends.cudnn.allow_tf32 = True
    network = run.network.make(InputShape("image", (3, 32, 32)), 10).to(DEVICE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    loader = torch.utils.data.DataLoader(
        Plain(images(TRAIN, 0)), batch, shuffle=True, num_workers=8, pin_memory=True, persistent_workers=True
    )
    taken = 0.0
    for _ in range(2):
        began = time.perf_counter()
        total = 0.0
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(network(inputs.to(DEVICE)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        taken = time.perf_counter() - began
    return taken


def peak_rate() -> float:
    """Floating-point operations a second of a large bfloat16 product."""
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    a @ a
    return 2 * 8192**3 * 10 / seconds(lambda: [a @ a for _ in range(10)], 3)


def operations(model: str) -> float:
    """Multiplications and additions of forward and backward for one image."""
    from torch.utils.flop_counter import FlopCounterMode

    network = Run(model=model).network.make(InputShape("image", (3, 32, 32)), 10)
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(2, 3, 32, 32)).sum().backward()
    return counter.get_total_flops() / 2


def table(found: dict[str, Any]) -> str:
    """A row for each batch size and engine, beside the plain loop of the same run."""
    head = ["batch", "engine", "epoch, s", "times the floor", "step, ms", "evaluation, s", "start-up, s"]
    head += ["plain loop, s", "plain / ours"]
    rows = []
    for name, row in found.items():
        engine, _, batch = name.partition(" ")
        if engine not in ("eager", "graph", "compile"):
            continue
        plain = found.get(f"plain {batch}")
        cells = [batch, engine, f"{row['epoch']:.2f}", f"{row['epoch'] / found['floor']:.1f}"]
        cells += [f"{row['step_ms']:.2f}", f"{row['evaluation']:.2f}", f"{row['start_up']:.0f}"]
        cells += [f"{plain:.2f}", f"{plain / row['epoch']:.1f}"] if plain else ["", ""]
        rows.append(cells)
    return markdown(head, rows)


def main() -> None:
    """Measure, print, and leave a JSON document if asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 512])
    parser.add_argument(
        "--engine", nargs="+", default=["graph", "compile"], choices=["eager", "graph", "compile"]
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--no-plain", action="store_true", help="leave the plain loop out")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--from", type=Path, dest="known", help="write the table of this JSON into the docs")
    options = parser.parse_args()
    if options.known:
        rewrite("training.md", "train-gpu", table(json.loads(options.known.read_text())))
        return
    if not torch.cuda.is_available():
        sys.exit("benchmarks/train_gpu.py needs a GPU")
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    with _global_state(DEVICE):
        floor = operations(options.model) * TRAIN / peak_rate()
        print(f"{options.model}: arithmetic floor of an epoch {floor:.3f} s", flush=True)
        found["floor"] = floor
        for batch in options.batch:
            for engine in options.engine:
                row = ours(options.model, batch, engine, options.epochs)
                found[f"{engine} {batch}"] = row
                print(
                    f"batch {batch}, {engine}: epoch {row['epoch']:.3f} s ({row['epoch'] / floor:.1f} x floor), "
                    f"step {row['step_ms']:.2f} ms, evaluation {row['evaluation']:.3f} s, start-up "
                    f"{row['start_up']:.1f} s; data {row['data_mb']:.0f} MB, allocated {row['allocated_mb']:.0f} MB",
                    flush=True,
                )
            for kind, ms in profile(options.model, batch, options.engine[-1]):
                print(f"  {ms:6.3f} ms a step: {kind}", flush=True)
            if not options.no_plain:
                taken = plain_loop(options.model, batch)
                found[f"plain {batch}"] = taken
                print(f"batch {batch}, plain loop: epoch {taken:.2f} s", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
