"""text_cnn on 20 Newsgroups, beside TF-IDF with logistic regression on the same rows, without headers and with them.

    python benchmarks/newsgroups.py DATA_DIR [--out OUT] [--epochs N] [--device cpu] [--json PATH] [--write]

Both read the same training messages (split 9:1) and are scored on the 7,532 later ones of the published test part,
which chooses nothing; a temperature is fitted to the validation messages. A run that lies finished in OUT is only read.
`--write` puts the table into the docs, of a JSON document alone if DATA_DIR is left out. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core.spec import canonical
from calibrant.core.temperature import fit_temperature
from calibrant.data import Newsgroups, split, store
from calibrant.train import Run, recipe, train
from calibrant.train.measure import values
from tables import markdown, rewrite

SPLIT = "9:1"
LINEAR, NETWORK = "TF-IDF, logistic regression", "`text_cnn`"


def judged(val: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """The numbers of a model, raw and at the temperature of val."""
    temperature = fit_temperature(*val).temperature
    raw, scaled = values(*test), values(test[0] / temperature, test[1])
    return {
        "error": raw["error"],
        "nll": raw["nll"],
        "ece": raw["ece"],
        "temperature": temperature,
        "ece_scaled": scaled["ece"],
    }


def linear(data: Newsgroups, data_dir: Path) -> dict[str, Any]:
    """Logistic regression on the words of whole messages, as scikit-learn counts and weights them."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    stock = store.load("20newsgroups", data_dir)
    texts = np.array([*data.texts(stock, "train"), *data.texts(stock, "test")], dtype=object)
    parts = split(data.load(data_dir), SPLIT)
    began = time.perf_counter()
    words = TfidfVectorizer(sublinear_tf=True, min_df=2)
    inputs = words.fit_transform(texts[parts.train.ids.numpy()])
    fitted = LogisticRegression(C=10.0, max_iter=300).fit(inputs, parts.train.labels.numpy())
    seconds = time.perf_counter() - began
    val, test = (
        (
            torch.from_numpy(fitted.decision_function(words.transform(texts[part.ids.numpy()]))).float(),
            part.labels,
        )
        for part in (parts.val, parts.test)
    )
    return {"rows": len(parts.train), "seconds": seconds, **judged(val, test)}


def network(data: Newsgroups, data_dir: Path, out: Path, epochs: int, device: str) -> dict[str, Any]:
    """text_cnn by the recipe for texts."""
    run = Run(data=canonical(data), model="text_cnn", split=SPLIT, recipe=recipe("text", epochs=epochs))
    done = train(run, out / run.id, data_dir=data_dir, device=device, resume=True)
    # the median, since the machine may have had other work in some epochs
    seconds = len(done.history) * statistics.median(line["seconds"] for line in done.history)
    val, test = ((part.logits, part.labels) for part in (done.val, done.test))
    return {"rows": done.history[-1]["rows"], "seconds": seconds, **judged(val, test)}


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """A row for each kind of message and model."""
    head = ["messages", "model", "accuracy, %", "NLL", "ECE, %", "T", "ECE at T, %", "training, s"]
    rows = [
        [
            messages,
            model,
            f"{100 * (1 - row['error']):.1f}",
            f"{row['nll']:.3f}",
            f"{100 * row['ece']:.1f}",
            f"{row['temperature']:.2f}",
            f"{100 * row['ece_scaled']:.1f}",
            f"{row['seconds']:.0f}",
        ]
        for messages, models in found.items()
        for model, row in models.items()
    ]
    return markdown(head, rows)


def main() -> None:
    """Train, judge, print; write where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data_dir", type=Path, nargs="?", help="where 20newsgroups was imported to")
    parser.add_argument("--out", type=Path, help="where run directories go (by default nowhere that stays)")
    parser.add_argument("--epochs", type=int, default=recipe("text").epochs)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=Path("results/newsgroups.json"))
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    if options.data_dir is None:
        if not options.write:
            parser.error("give DATA_DIR, or --write")
        found = json.loads(options.json.read_text())
    else:
        with tempfile.TemporaryDirectory() as scratch:
            out = options.out or Path(scratch)
            for name, data in (("stripped", Newsgroups()), ("whole", Newsgroups(strip=False))):
                found[name] = {
                    LINEAR: linear(data, options.data_dir),
                    NETWORK: network(data, options.data_dir, out, options.epochs, options.device),
                }
                print(name, json.dumps(found[name]), flush=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))
    if options.write:
        rewrite("training.md", "newsgroups", table(found))


if __name__ == "__main__":
    main()
