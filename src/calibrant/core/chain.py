"""Calibrators by name, and one after another: `temperature`, `temperature > histogram(bins=15)`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from calibrant.core.calibration import Calibrator, Fitted, Procedure, Scope, Shape, State, Top
from calibrant.core.errors import CalibrantError, SpecError
from calibrant.core.spec import build, split_at

MOST_STEPS = 20


def calibrator(spec: str) -> Procedure:
    """The calibrator that a spec names, or a chain of them: `calibrator("temperature").fit(logits, labels)`."""
    parts = split_at(spec, ">")
    if len(parts) > 1 and not all(parts):
        raise SpecError(f"{spec!r} has nothing on one side of '>'; write 'temperature > histogram(bins=15)'")
    if len(parts) > MOST_STEPS:
        raise SpecError(f"a chain of {len(parts)} calibrators is too long; {MOST_STEPS} are allowed")
    steps = tuple(build(part, "calibrators") for part in parts)
    return steps[0] if len(steps) == 1 else Chain(steps)


@dataclass(frozen=True)
class Chain(Calibrator):
    """Calibrators one after another, each fitted to what those before it give; saved and loaded as one.

    Its state holds the tensors of all steps, each under `STEP.NAME`. A step that chooses is one until it is fitted.
    """

    steps: tuple[Procedure, ...]

    def __post_init__(self) -> None:
        flat = [each for step in self.steps for each in (step.steps if isinstance(step, Chain) else (step,))]
        object.__setattr__(self, "steps", tuple(flat))
        if len(flat) < 2:
            raise CalibrantError("a chain needs at least two calibrators")
        for step, after in pairwise(flat):
            if step.scope == "top":
                raise SpecError(
                    f"{after} cannot follow {step}, which changes the confidence of the top label alone; put that last"
                )

    @property
    def scope(self) -> Scope:
        return self.steps[-1].scope

    @property
    def keeps_argmax(self) -> bool:
        return all(step.keeps_argmax for step in self.steps)

    @property
    def settled(self) -> bool:
        return all(isinstance(step, Calibrator) and step.settled for step in self.steps)

    def settle(self, logits: Tensor, labels: Tensor) -> Fitted:
        fits: list[Fitted] = []
        for step in self.steps:
            if fits:
                logits = _full(fits[-1].calibrator.apply(fits[-1].state, logits))
            fits.append(step.settle(logits, labels))
        state = {f"{i}.{name}": tensor for i, fit in enumerate(fits) for name, tensor in fit.state.items()}
        notes = tuple(note for fit in fits for note in fit.notes)
        chain = Chain(tuple(fit.calibrator for fit in fits))
        return Fitted(chain, state, fits[0].classes, notes, fits[0].provenance)

    def learn(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return dict(self.settle(logits, labels).state)

    def apply(self, state: State, logits: Tensor) -> Tensor | Top:
        found: Tensor | Top = logits
        for i, step in enumerate(self._calibrators()):
            own = {name.split(".", 1)[1]: t for name, t in state.items() if name.split(".", 1)[0] == str(i)}
            found = step.apply(own, _full(found))
        return found

    def shapes(self, classes: int) -> dict[str, Shape]:
        every = enumerate(self._calibrators())
        return {f"{i}.{name}": shape for i, step in every for name, shape in step.shapes(classes).items()}

    def _calibrators(self) -> list[Calibrator]:
        found = [step for step in self.steps if isinstance(step, Calibrator)]
        if len(found) < len(self.steps):
            raise CalibrantError(f"{self} makes a choice when it is fitted, and has no state before")
        return found

    def __str__(self) -> str:
        return " > ".join(map(str, self.steps))


def _full(given: Tensor | Top) -> Tensor:
    assert isinstance(given, Tensor), "a top-label calibrator stands last, which the chain has checked"
    return given
