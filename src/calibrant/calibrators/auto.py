"""The choice among calibrators by what they do to rows that they were not fitted to."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from calibrant.calibrators.identity import Identity
from calibrant.core.calibration import CalibrationWarning, Fitted, Procedure, Scope
from calibrant.core.chain import calibrator
from calibrant.core.errors import CalibrantError, SpecError
from calibrant.core.registry import register
from calibrant.core.rows import fold_of
from calibrant.core.spec import split_specs

Array = np.ndarray


@register("calibrators", "auto")
@dataclass(frozen=True)
class Auto(Procedure):
    r"""Chooses a calibrator by cross-validated log loss, and none where no gain can be seen.

    `candidates` are specs from simple to complex. Each is fitted to all folds but one and scored on that one. The
    simplest whose log loss is within one standard error of the lowest is taken, if it beats `identity` by more than
    one standard error; else `identity` is. The standard errors are those of paired differences over rows. With one
    candidate it asks whether that one helps. The fold of a row follows from its numbers and the seed, not from its
    place. It costs `folds` + 1 fits of every candidate, and one more look at the data: what is chosen is a little
    better here than elsewhere. It fails where rows belong together (frames of one film), since folds then share
    them. `notes` of the fit say how it was chosen; what is saved is the calibrator that was chosen.
    """

    candidates: str = "temperature, ets, irm, vector"
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.folds < 2 or self.seed < 0:
            raise CalibrantError(f"auto needs folds >= 2 and seed >= 0, not {self.folds} and {self.seed}")
        chosen = self.procedures
        if not chosen:
            raise SpecError('auto names no candidate; write auto(candidates="temperature, vector")')
        for each in chosen:
            if each.scope != "full":
                raise SpecError(
                    f"auto compares log losses, and {each} has none, since it gives the top label alone; leave it out"
                )
            if isinstance(each, Auto):
                raise SpecError("auto cannot choose itself; leave it out of its candidates")

    @property
    def procedures(self) -> list[Procedure]:
        """The candidates from simple to complex."""
        return [calibrator(each) for each in split_specs(self.candidates)]

    @property
    def scope(self) -> Scope:
        return "full"

    @property
    def keeps_argmax(self) -> bool:
        return all(each.keeps_argmax for each in self.procedures)

    def settle(self, logits: Tensor, labels: Tensor) -> Fitted:
        if len(labels) < 2 * self.folds:
            fitted = Identity().settle(logits, labels)
            few = f"auto: {len(labels)} rows are too few for {self.folds} folds, so identity is taken"
            return replace(fitted, notes=(few,))
        specs = split_specs(self.candidates)
        fold = fold_of(logits, labels, self.folds, self.seed)
        loss = {"identity": _log_loss(logits, labels)}
        failed = []
        for spec, procedure in zip(specs, self.procedures, strict=True):
            try:
                loss[spec] = _held_out(procedure, logits, labels, fold, self.folds)
            except CalibrantError as error:
                failed.append(f"{spec} is left out: {error}")
        chosen, notes = _choose(loss, self.folds, failed)
        fitted = calibrator(chosen).settle(logits, labels)
        return replace(fitted, notes=(*notes, *fitted.notes))


def _held_out(procedure: Procedure, logits: Tensor, labels: Tensor, fold: Tensor, folds: int) -> Array:
    """The log loss of every row under a fit to the folds that it is not in."""
    loss = np.empty(len(labels))
    for each in range(folds):
        out = fold == each
        with warnings.catch_warnings():  # what is chosen is fitted once more, and warns then
            warnings.simplefilter("ignore", CalibrationWarning)
            fitted = procedure.settle(logits[~out], labels[~out])
        found = fitted(logits[out])
        assert isinstance(found, Tensor), "a candidate of auto has full scope"
        loss[out.cpu().numpy()] = _log_loss(found, labels[out])
    return loss


def _log_loss(logits: Tensor, labels: Tensor) -> Array:
    """-ln of the true class's probability, in float64."""
    at_label = logits.gather(1, labels[:, None])[:, 0].double()
    return (logits.double().logsumexp(1) - at_label).cpu().numpy()


def _choose(loss: dict[str, Array], folds: int, failed: list[str]) -> tuple[str, tuple[str, ...]]:
    """The choice and its reasoning in four lines."""
    means = {spec: _mean(each) for spec, each in loss.items()}
    candidates = [spec for spec in loss if spec != "identity" and math.isfinite(means[spec])]
    shown = ", ".join(f"{spec} {mean:.4f}" for spec, mean in means.items())
    left = f" ({'; '.join(failed)})" if failed else ""
    first = f"auto: held-out log loss in {folds} folds of {len(loss['identity']):,} rows: {shown}{left}"
    if not candidates:
        rest = ("auto: no candidate has a finite one", "auto: nothing to prefer", "auto: identity is taken")
        return "identity", (first, *rest)
    best = min(candidates, key=lambda spec: means[spec])
    simplest = next(spec for spec in candidates if _within(loss[spec], loss[best]))
    apart, error = _paired(loss[simplest], loss[best])
    gain, gain_error = _paired(loss["identity"], loss[simplest])
    helps = gain > gain_error
    chosen = simplest if helps else "identity"
    return chosen, (
        first,
        f"auto: {best} has the lowest, {means[best]:.4f}",
        f"auto: the simplest within one standard error of it is {simplest} ({apart:+.2g}, standard error {error:.2g})",
        f"auto: its gain over identity is {gain:.4f} (standard error {gain_error:.2g}), so {chosen} is taken",
    )


def _within(loss: Array, best: Array) -> bool:
    apart, error = _paired(loss, best)
    return apart <= error


def _paired(a: Array, b: Array) -> tuple[float, float]:
    """The mean of a - b over rows, and its standard error."""
    difference = a - b
    apart = _mean(difference)
    spread = math.sqrt(_mean((difference - apart) ** 2) * len(a) / (len(a) - 1))
    return apart, spread / math.sqrt(len(a))


def _mean(values: Array) -> float:
    """A mean that does not depend on the order of the rows."""
    return math.fsum(values) / len(values)
