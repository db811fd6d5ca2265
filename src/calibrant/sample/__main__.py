"""`python -m calibrant.sample DIR` writes two sample files of predictions on the same 5,000 rows."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from calibrant.core.predictions import Predictions
from calibrant.data.synthetic import Synthetic


def samples() -> dict[str, Predictions]:
    """An overconfident model and a calibrated one, on the same rows with the same labels."""
    source = Synthetic(classes=10, error=0.08, truth="temperature")
    over, posterior = source.draw(5000, seed=2)
    over = replace(over, meta={**over.meta, "model": "synthetic, overconfident by 8 points"})
    true = Predictions(
        posterior.log().float(), over.labels, meta={**over.meta, "model": "synthetic, the true posterior"}
    )
    return {"synthetic-overconfident": over, "synthetic-calibrated": true}


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
