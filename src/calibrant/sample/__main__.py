"""`python -m calibrant.sample DIR` writes sample predictions: two models on the same rows, and rows to fit to."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from calibrant.core.predictions import Predictions
from calibrant.data.synthetic import Synthetic


def samples() -> dict[str, Predictions]:
    """An overconfident and a calibrated model on the same 5,000 rows; and the first on as many others, to fit to."""
    source = Synthetic(classes=10, error=0.08, truth="temperature")
    told = {"model": "synthetic, overconfident by 8 points"}
    over, posterior = source.draw(5000, seed=2)
    over = replace(over, meta={**over.meta, **told})
    val, _ = source.draw(5000, seed=3)
    val = replace(val, meta={**val.meta, **told, "split": "val"})
    true = Predictions(
        posterior.log().float(), over.labels, meta={**over.meta, "model": "synthetic, the true posterior"}
    )
    return {"synthetic-overconfident": over, "synthetic-calibrated": true, "synthetic-val": val}


def main() -> None:
    """Write the sample files and say what was written."""
    where = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    where.mkdir(parents=True, exist_ok=True)
    for name, predictions in samples().items():
        path = where / f"{name}.npz"
        predictions.save(path)
        print(f"wrote {path}: {predictions.n:,} rows, {predictions.meta['model']} (no real model made these)")


if __name__ == "__main__":
    main()
