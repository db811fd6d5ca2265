"""What a network predicts for whole sets, and the numbers of an epoch that are made of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from calibrant.core.predictions import Predictions
from calibrant.core.samples import Samples
from calibrant.core.temperature import best_temperature_for_ece, fit_temperature
from calibrant.metrics.evaluate import metric
from calibrant.metrics.metric import estimates
from calibrant.metrics.scores import Scores
from calibrant.train.feed import Preparation

ROWS = {"cpu": 500, "cuda": 2500}


def predict(network: nn.Module, preparation: Preparation, samples: Samples, *, half: bool = False) -> Tensor:
    """Logits [N, K] in float32, in evaluation mode, a large batch at a time; the mode is put back afterwards."""
    training, device = network.training, samples.inputs.device
    network.eval()
    rows = ROWS.get(device.type, 500)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
        parts = [
            network(preparation(samples.inputs[start : start + rows])).float()
            for start in range(0, len(samples), rows)
        ]
    network.train(training)
    return torch.cat(parts)


def measures(name: str, logits: Tensor, labels: Tensor, temperature: float) -> dict[str, float | None]:
    """Error, NLL, Brier score and ECE of one set, and its NLL and ECE at a temperature that was fitted to val."""
    found, scaled = values(logits, labels), values(logits / temperature, labels)
    found |= {"nll_scaled": scaled["nll"], "ece_scaled": scaled["ece"]}
    return {f"{name}_{key}": value for key, value in found.items()}


def values(logits: Tensor, labels: Tensor) -> dict[str, float | None]:
    """The four numbers of a set of predictions; None where one is not finite."""
    scores = Scores(Predictions(logits, labels))
    chosen = {"error": "error", "nll": "nll", "brier": "brier", "ece": "ece(bins=15)"}
    made = estimates([metric(spec) for spec in chosen.values()], scores)
    return {
        key: each.value if math.isfinite(each.value) else None for key, each in zip(chosen, made, strict=True)
    }


def epoch_measures(val: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> dict[str, float | None]:
    """An epoch on val and test: as it is, at the temperature of val, and at the one of test that has the least ECE.

    The last is document 002's *optimal ECE*: an oracle, since it looks at the labels of test.
    """
    temperature = fit_temperature(*val).temperature
    oracle = best_temperature_for_ece(*test)
    return {
        **measures("val", *val, temperature),
        **measures("test", *test, temperature),
        "temperature": temperature,
        "test_temperature_oracle": oracle,
        "test_ece_oracle": values(test[0] / oracle, test[1])["ece"],
    }
