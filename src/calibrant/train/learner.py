"""A meta-regulariser in the loop: before each step of the network, phi moves by what that step would do held out.

The held-out rows are those of the meta split, in an order of their own that the seed and the epoch decide. They pass
the network without gradient and in evaluation mode, so that batch norm never sees them; from there on only the head is
looked at. Everything that changes is a tensor with a fixed address, as in the rest of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calibrant.core.errors import InputError
from calibrant.core.meta import Head, MetaRegularizer, Phi, Rows
from calibrant.core.objective import Objective, State
from calibrant.core.samples import Samples
from calibrant.meta.hypergradient import hypergradient
from calibrant.meta.lookahead import descent
from calibrant.meta.move import Memory, moved, remember
from calibrant.train.feed import Feed, Preparation, epoch_seed
from calibrant.train.parallel import World


class WithFeatures(nn.Module):
    """A network that also gives what its head reads: features and logits of one forward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.module.features(inputs)  # type: ignore[operator]
        return features, self.module.head(features)  # type: ignore[operator]


class Features(nn.Module):
    """What a network's head reads, alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.network.features(inputs)  # type: ignore[operator]
        return found


def head_of(network: nn.Module) -> nn.Linear:
    """The last layer of a network that can be taken apart; others are refused."""
    head = getattr(network, "head", None)
    if not isinstance(head, nn.Linear) or not callable(getattr(network, "features", None)):
        raise InputError(
            f"{type(network).__name__} cannot be taken apart: a meta-regulariser needs a network with "
            "features(inputs) and a linear head"
        )
    return head


@dataclass(eq=False)
class Learner:
    """Phi, what its optimiser remembers, and the held-out rows that move it."""

    meta: MetaRegularizer
    base: Objective
    objective: Objective
    layer: nn.Linear
    phi: Phi
    memory: Memory
    held: Samples
    preparation: Preparation
    order: Tensor
    places: Tensor
    part: slice
    value: Tensor
    peak: float
    world: World

    @classmethod
    def begun(
        cls,
        meta: MetaRegularizer,
        base: Objective,
        objective: Objective,
        network: nn.Module,
        classes: int,
        held: Samples,
        feed: Feed,
        world: World,
        *,
        seed: int,
        peak: float,
    ) -> Learner:
        """Phi as it is before the first step: from the features of the first batch."""
        layer = head_of(network)
        if not len(held):
            raise InputError(
                "a meta-regulariser learns on the meta split, and this split has none; use split=8:1:1"
            )
        feed.begin(seed, 1)
        device = held.labels.device
        training = network.training
        network.eval()
        with torch.no_grad():
            batch = feed(torch.zeros((), dtype=torch.int64, device=device))
            first = world.gathered(network.features(batch.inputs))  # type: ignore[operator]
        network.train(training)
        phi = meta.init(first, classes, seed=epoch_seed(seed, 0, "phi"))
        return cls(
            meta,
            base,
            objective,
            layer,
            phi,
            remember(meta, phi),
            held,
            feed.preparation,
            torch.zeros_like(feed.order),
            feed.places,
            feed.part,
            torch.zeros((), dtype=torch.float64, device=device),
            peak,
            world,
        )

    def live(self) -> dict[str, Tensor]:
        """The tensors that training changes, by name."""
        return {f"meta.phi.{name}": value for name, value in self.phi.items()} | {
            f"meta.memory.{name}": value for name, value in self.memory.items()
        }

    def begin(self, seed: int, epoch: int, steps: int) -> None:
        """Draw the held-out order of an epoch: every row once before any comes again."""
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch, "held-out order"))
        wanted, found = steps * len(self.places), 0
        rounds = []
        while found < wanted:
            rounds.append(torch.randperm(len(self.held), generator=generator))
            found += len(self.held)
        self.order[:wanted].copy_(torch.cat(rounds)[:wanted])
        self.value.zero_()

    def look(
        self,
        network: nn.Module,
        train: Rows,
        step: Tensor,
        optimizer: torch.optim.Optimizer,
        state: State,
        *,
        rate: Tensor,
        half: bool,
    ) -> None:
        """Move phi by one step: `train` are the rows of the batch, `network` gives features and logits."""
        rows = self.order[step * len(self.places) + self.places]
        inputs = self.preparation(self.held.inputs[rows[self.part]])
        network.eval()
        # a context of its own: what autocast keeps of a pass without gradient must not serve the one with it
        with torch.no_grad(), torch.autocast(inputs.device.type, torch.bfloat16, enabled=half):
            seen, _ = network(inputs)
        network.train()
        found = hypergradient(
            self.meta,
            self.phi,
            Head.of(self.layer),
            train,
            Rows(self.world.gathered(seen), self.held.labels[rows]),
            base=self.base,
            objective=self.objective,
            descent=descent(self.meta, optimizer, self.layer),
            state=state,
        )
        phi, memory = moved(self.meta, self.phi, found.phi, self.memory, rate / self.peak)
        for live, new in ((self.phi, phi), (self.memory, memory)):
            for name, value in new.items():
                live[name].copy_(value)
        self.value.add_(found.value)

    def loss(self, features: Tensor, logits: Tensor, target: Tensor, state: State) -> Tensor:
        """The main step's loss, in which phi is a constant."""
        head = Head.of(self.layer)
        if not self.world.first:  # a term of the head alone is one process's to differentiate
            head = Head(*(each.detach() for each in head.tensors))
        return self.meta.loss(self.phi, features, logits, target, base=self.base, head=head, state=state)
