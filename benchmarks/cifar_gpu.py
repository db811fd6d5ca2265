"""What the recipes reach on CIFAR-10: error and ECE, raw and after the temperature that the validation set asks for.

    python benchmarks/cifar_gpu.py DATA_DIR OUT [--runs resnet18:sgd350:0 ...] [--json PATH]

Runs are named model:recipe:seed, or model:recipe@epochs:seed; those that lie finished in OUT are only read, one that
was cut off goes on. All are trained on 45,000 images (split 9:1) and scored on the 10,000 of the published test set,
which chooses nothing. `--write` puts the table of a JSON document into the docs, without training.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from calibrant.train import Run, Trained, recipe, train
from tables import markdown, rewrite

RUNS = [
    "resnet18:short:0",
    "resnet18:short:1",
    "resnet50:short:0",
    "vgg16:short:0",
    "resnet32:short:0",
    "resnet110:short:0",
    "resnet18:sgd350:0",
    "resnet18:sgd350:1",
]


def judged(trained: Trained) -> dict[str, Any]:
    """The numbers of a finished run, from its predictions in float32."""
    found, lines = trained.summary, trained.history
    kept = ("epochs", "temperature")
    return {
        **{key: found[key] for key in kept},
        **{key.removeprefix("test_"): value for key, value in found.items() if key.startswith("test_")},
        "epoch_seconds": statistics.median(line["seconds"] for line in lines),
        "evaluation_seconds": statistics.median(line["eval_seconds"] for line in lines),
    }


def trained_run(name: str, data_dir: Path, out: Path) -> dict[str, Any]:
    """Train one run by its name, or read it."""
    model, called, seed = name.split(":")
    named, _, epochs = called.partition("@")
    chosen = recipe(named, **({"epochs": int(epochs)} if epochs else {}))
    run = Run(data="cifar10", model=model, split="9:1", seed=int(seed), recipe=chosen)
    return judged(train(run, out / name.replace(":", "-"), data_dir=data_dir, resume=True))


def table(found: dict[str, dict[str, Any]]) -> str:
    """A row for each model and recipe: the mean over its seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, row in found.items():
        model, called, _ = name.split(":")
        groups.setdefault((model, called), []).append(row)
    head = [
        "network",
        "recipe",
        "epochs",
        "seeds",
        "error, %",
        "NLL",
        "ECE, %",
        "T",
        "ECE at T, %",
    ]
    rows = []
    for (model, called), each in groups.items():
        mean = {key: statistics.mean(row[key] for row in each) for key in each[0]}
        rows.append(
            [
                f"`{model}`",
                f"`{called}`",
                f"{mean['epochs']:.0f}",
                str(len(each)),
                f"{100 * mean['error']:.2f}",
                f"{mean['nll']:.4f}",
                f"{100 * mean['ece']:.2f}",
                f"{mean['temperature']:.2f}",
                f"{100 * mean['ece_scaled']:.2f}",
            ]
        )
    return markdown(head, rows)


def main() -> None:
    """Train, judge, print; write where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data_dir", type=Path, nargs="?", help="where cifar10 was imported to")
    parser.add_argument("out", type=Path, nargs="?", help="where run directories go")
    parser.add_argument("--runs", nargs="+", default=RUNS, metavar="MODEL:RECIPE:SEED")
    parser.add_argument("--json", type=Path, default=Path("results/cifar_gpu.json"))
    parser.add_argument("--write", action="store_true", help="only put what --json holds into the docs")
    options = parser.parse_args()
    found = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.write:
        rewrite("training.md", "cifar-gpu", table(found))
        return
    if options.data_dir is None or options.out is None:
        parser.error("give DATA_DIR and OUT, or --write")
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in options.runs:
        found[name] = trained_run(name, options.data_dir, options.out)
        print(name, json.dumps(found[name]), flush=True)
        options.json.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
