"""One step of training: forward, loss, backward, update, as it stands or captured in a CUDA graph.

Everything a step reads and writes is a tensor with a fixed address, its own number included, so that the same code runs
eagerly, compiled and captured, and an epoch is a replay of one graph without a word between host and device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.core.meta import Rows
from calibrant.core.objective import Objective, State
from calibrant.train.feed import Batch, Feed, at
from calibrant.train.learner import Learner
from calibrant.train.parallel import World
from calibrant.train.recipe import Recipe

Engine = Literal["auto", "eager", "graph", "compile"]
COMPILE_FROM = 40_000
"""Steps in a run from which compilation, a quarter of a minute, is worth the 0.4 ms that it saves at each."""


@dataclass(eq=False)
class Tally:
    """What a step leaves behind on the device: sums of an epoch, and for each training row its last wrong epoch."""

    step: Tensor
    epoch: Tensor
    loss: Tensor
    wrong: Tensor
    last_wrong: Tensor

    @classmethod
    def fresh(cls, rows: int, device: torch.device) -> Tally:
        def scalar(dtype: torch.dtype) -> Tensor:
            return torch.zeros((), dtype=dtype, device=device)

        whole, real = torch.int64, torch.float64
        return cls(
            scalar(whole),
            scalar(whole),
            scalar(real),
            scalar(whole),
            torch.zeros(rows, dtype=torch.int32, device=device),
        )

    def begin(self, epoch: int) -> None:
        """Start an epoch, counted from 1."""
        self.step.zero_()
        self.epoch.fill_(epoch)
        self.loss.zero_()
        self.wrong.zero_()


def optimiser(network: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """torch's own, fused, its learning rate a tensor and its state there from the start."""
    rate = torch.tensor(recipe.lr, device=device)
    parameters = [p for p in network.parameters() if p.requires_grad]
    made: torch.optim.Optimizer
    if recipe.optimizer == "sgd":
        made = torch.optim.SGD(
            parameters,
            rate,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
    else:
        made = torch.optim.AdamW(parameters, rate, weight_decay=recipe.weight_decay, fused=True)
    rate.zero_()
    for p in parameters:
        p.grad = torch.zeros_like(p)
    made.step()
    made.zero_grad()
    reset(made)
    return made


def reset(optimizer: torch.optim.Optimizer) -> None:
    """Bring the state back to that before the first step."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()


def rate_of(optimizer: torch.optim.Optimizer) -> Tensor:
    """The tensor that holds the learning rate."""
    rate: Tensor = optimizer.param_groups[0]["lr"]
    return rate


@dataclass(eq=False)
class Step:
    """All that one step touches."""

    network: nn.Module
    objective: Objective
    state: State
    optimizer: torch.optim.Optimizer
    feed: Feed
    tally: Tally
    rates: Tensor
    recipe: Recipe
    average: dict[str, Tensor]
    half: bool
    world: World
    learner: Learner | None = None

    def __call__(self) -> None:
        batch = self.feed(self.tally.step)
        rate_of(self.optimizer).copy_(at(self.rates, self.tally.step))
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(batch.inputs.device.type, torch.bfloat16, enabled=self.half):
            found = self.network(batch.inputs)
        logits, loss = self._loss(found, batch) if self.learner is None else self._learned(found, batch)
        torch.autograd.backward(
            loss * self.world.size
        )  # torch averages over processes what here is a sum of parts
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip, foreach=True)
        self.optimizer.step()
        self._note(loss.detach(), logits.detach(), batch.labels, batch.rows)

    def _loss(self, found: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits of the whole batch, and the objective."""
        logits = self.world.gathered(found.float())
        return logits, self.objective.loss(self.state, logits, batch.target)

    def _learned(self, found: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        """The same under a meta-regulariser, which first moves by what this step would do."""
        assert self.learner is not None
        features = self.world.gathered(found[0].detach())
        logits = self.world.gathered(found[1].float())
        self.learner.look(
            self.network,
            Rows(features, batch.target),
            self.tally.step,
            self.optimizer,
            self.state,
            rate=rate_of(self.optimizer),
            half=self.half,
        )
        return logits, self.learner.loss(features, logits, batch.target, self.state)

    def _note(self, loss: Tensor, logits: Tensor, labels: Tensor, rows: Tensor) -> None:
        """Sums, the last wrong epoch of each row, the running mean of the weights, and the next step's number."""
        tally = self.tally
        wrong = logits.argmax(1) != labels
        tally.loss.add_(loss)
        tally.wrong.add_(wrong.sum())
        tally.last_wrong[rows] = torch.where(wrong, tally.epoch.int(), tally.last_wrong[rows])
        if self.average:
            own = plain(self.network).state_dict()
            floats = [name for name, value in self.average.items() if value.is_floating_point()]
            held = [self.average[name] for name in floats]
            torch._foreach_lerp_(held, [own[name].detach() for name in floats], 1 - self.recipe.average)
        tally.step.add_(1)


def plain(network: nn.Module) -> nn.Module:
    """The network itself, out of what compilation and several processes have wrapped around it."""
    while True:
        inner = getattr(network, "_orig_mod", None) or getattr(network, "module", None)
        if not isinstance(inner, nn.Module):
            return network
        network = inner


def chosen(engine: Engine, device: torch.device, steps: int, world: World) -> Engine:
    """How to execute: graphs need CUDA and one process; compilation is for runs that are long enough."""
    if device.type != "cuda" or world.size > 1:
        return "eager"
    if engine == "auto":
        return "compile" if steps >= COMPILE_FROM else "graph"
    return engine


def executed(step: Step, engine: Engine) -> Callable[[], None]:
    """The step as a function: itself, or the replay of its graph. Afterwards everything is as it was before."""
    if engine == "eager":
        return step
    kept = {name: value.clone() for name, value in plain(step.network).state_dict().items()}
    averaged = {name: value.clone() for name, value in step.average.items()}
    last_wrong = step.tally.last_wrong.clone()
    held = [value for state in step.optimizer.state.values() for value in state.values()]
    held += [] if step.learner is None else [*step.learner.live().values(), step.learner.value]
    moments = [(value, value.clone()) for value in held if isinstance(value, Tensor)]
    if engine == "compile":
        step.network = torch.compile(step.network, dynamic=False)  # type: ignore[assignment]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step.tally.step.zero_()
            step()
    torch.cuda.current_stream().wait_stream(side)
    step.tally.step.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    plain(step.network).load_state_dict(kept)
    with torch.no_grad():
        for name, value in averaged.items():
            step.average[name].copy_(value)
        for value, before in moments:
            value.copy_(before)
        step.tally.last_wrong.copy_(last_wrong)
    step.tally.begin(0)
    return graph.replay
