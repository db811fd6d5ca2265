"""Calibrant: confidence that can be trusted, repaired and proved.

The names here are loaded on first use, so that `import calibrant` and `calibrant --help` cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant import calibrators, data, losses, meta, metrics, models, study, surrogates
    from calibrant.core.calibrator_file import load_calibrator
    from calibrant.core.chain import calibrator
    from calibrant.core.contracts import Estimate, Null
    from calibrant.core.errors import CalibrantError, InputError, SpecError
    from calibrant.core.objective import Objective, loss
    from calibrant.core.predictions import Predictions, TopLabel
    from calibrant.metrics.compare import Comparison, Difference, compare
    from calibrant.metrics.evaluate import Evaluation, evaluate, metric
    from calibrant.metrics.metric import Metric
    from calibrant.train.loop import Trained, train
    from calibrant.train.recipe import Recipe, recipe
    from calibrant.train.run import Run

__version__ = "0.1.0"

_HOME = {
    "CalibrantError": "core.errors",
    "InputError": "core.errors",
    "SpecError": "core.errors",
    "Estimate": "core.contracts",
    "Null": "core.contracts",
    "Objective": "core.objective",
    "loss": "core.objective",
    "calibrator": "core.chain",
    "load_calibrator": "core.calibrator_file",
    "Predictions": "core.predictions",
    "TopLabel": "core.predictions",
    "Evaluation": "metrics.evaluate",
    "evaluate": "metrics.evaluate",
    "metric": "metrics.evaluate",
    "Comparison": "metrics.compare",
    "Difference": "metrics.compare",
    "Metric": "metrics.metric",
    "compare": "metrics.compare",
    "Recipe": "train.recipe",
    "recipe": "train.recipe",
    "Run": "train.run",
    "Trained": "train.loop",
}
_ROOMS = {"calibrators", "data", "losses", "meta", "metrics", "models", "study", "surrogates", "train"}

__all__ = [
    "CalibrantError",
    "Comparison",
    "Difference",
    "Estimate",
    "Evaluation",
    "InputError",
    "Metric",
    "Null",
    "Objective",
    "Predictions",
    "Recipe",
    "Run",
    "SpecError",
    "TopLabel",
    "Trained",
    "__version__",
    "calibrator",
    "calibrators",
    "compare",
    "data",
    "evaluate",
    "load_calibrator",
    "loss",
    "losses",
    "meta",
    "metric",
    "metrics",
    "models",
    "recipe",
    "study",
    "surrogates",
    "train",
]


if not TYPE_CHECKING:  # a type checker reads the imports above, and must not think that every name exists

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(f"calibrant.{_HOME[name]}"), name)
        if name in _ROOMS:
            return importlib.import_module(f"calibrant.{name}")
        raise AttributeError(f"module 'calibrant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
