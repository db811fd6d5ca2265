"""Attended temperature scaling: one temperature from all classes that each row might have belonged to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.calibrators.odds import log_odds
from calibrant.calibrators.scale_search import best_temperature
from calibrant.core.calibration import Calibrator, Scope, Shape, State, warn
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import register

_BLOCK = 1 << 19  # elements


@register("calibrators", "attended", paper="mozafari2018")
@dataclass(frozen=True)
class Attended(Calibrator):
    r"""Attended temperature scaling: one T, from what each row says of every class that it could be taken for.

    $M_k$ holds the rows of class k, those predicted as k and those with $p_k$ above `threshold`. T minimises
    $\sum_k \sum_{i \in M_k} -\ln p_k$ where $y_i = k$, $-\ln (1 - p_k)$ where not; so a small set of rows says more.
    With two classes it is `temperature`. Classes and ranks stay; a bias for a class does too. As with `temperature`,
    where no T is best a warning says so. *Deviation:* the authors' abstract and supplement tell which rows are
    borrowed for a class and that they are weighted, not the formula. Their released code takes
    $-\ln \frac{p_k^2}{1 - p_k}$ for them, which with two classes is the log loss of the wrong labels; this is the
    proper score of the same rows, which calibrated logits leave at T = 1.
    """

    threshold: float = 1e-5

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise CalibrantError(f"threshold is a probability from 0 to 1, not {self.threshold:g}")

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return True

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        found, end = best_temperature(self._loss, logits, labels)
        if end:
            warn(f"no best temperature: the rows are all right or mostly wrong; T = {found:g} is used")
        return {"temperature": torch.tensor(found, dtype=torch.float64, device=logits.device)}

    def apply(self, state: State, logits: Tensor) -> Tensor:
        return logits / state["temperature"].to(logits)

    def shapes(self, classes: int) -> dict[str, Shape]:
        return {"temperature": ()}

    def _loss(self, logits: Tensor, labels: Tensor, beta: float) -> tuple[float, float]:
        value, slope = 0.0, 0.0
        step = max(1, _BLOCK // logits.shape[1])
        for start in range(0, len(labels), step):
            z = logits[start : start + step].double()
            own = labels[start : start + step, None].long()
            raw = z.softmax(1)
            borrowed = (raw > self.threshold).scatter(1, raw.argmax(1, keepdim=True), True)
            borrowed = borrowed.scatter(1, own, False)
            z = z - z.amax(1, keepdim=True)
            log_p, rest, seen = log_odds(z * beta)
            z = torch.where(seen, z, 0)
            z = z - (torch.where(seen, log_p.exp(), 0) * z).sum(1, keepdim=True)
            others = seen & borrowed
            value -= float(log_p.gather(1, own).sum() + torch.where(others, rest, 0).sum())
            odds = torch.where(others, (log_p - rest).exp(), 0)
            slope += float((odds * z).sum() - z.gather(1, own).sum())
        return value / len(labels), slope / len(labels)
