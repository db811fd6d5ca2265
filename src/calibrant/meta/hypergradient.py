"""What a held-out objective says of phi: its gradient through a lookahead of the head.

The cost is that of the head, N x d and d x K: features are numbers here, and no backward pass enters the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.core.meta import Head, MetaRegularizer, Phi, Rows
from calibrant.core.objective import State, Summand
from calibrant.core.soft import full_precision
from calibrant.meta.lookahead import Descent


class Hypergradient(NamedTuple):
    """The meta-objective after the lookahead, its gradient for phi, and what leaks to the parameters asked for."""

    value: Tensor
    phi: Phi
    leak: tuple[Tensor, ...] = ()


def hypergradient(
    meta: MetaRegularizer,
    phi: Phi,
    head: Head,
    train: Rows | Sequence[Rows],
    held: Rows,
    *,
    base: Summand,
    objective: Summand,
    descent: Descent,
    state: State | None = None,
    leak: Sequence[Tensor] = (),
) -> Hypergradient:
    r"""$d M(\theta'(\phi)) / d\phi$: $\theta'$ is the head after the lookahead on `train` by the loss under phi.

    $M$ is the meta-objective on the held-out rows, plus phi's own cost. Several steps take the batches of `train` in
    turn. Nothing is written anywhere: no `.grad`, no statistics. With `leak`, parameters of the network, the graph is
    entered where the features have one, and what the released code adds to their gradients comes back: one more
    backward pass, to second order. It is for reproducing that code, whose network so trains on the held-out rows.
    """
    batches = (train,) if isinstance(train, Rows) else tuple(train)
    for rows in (*batches, held):
        if rows.features.ndim != 2 or rows.features.shape[1] != head.weight.shape[1]:
            raise InputError(
                f"the head reads features [N, {head.weight.shape[1]}], not {list(rows.features.shape)}"
            )
    with torch.enable_grad(), full_precision(head.weight.device):
        leaves = {name: value.detach().requires_grad_() for name, value in phi.items()}
        if not leak:
            head, held = head.leaf(), held.detached()
            batches = tuple(rows.detached() for rows in batches)
        value = outlook(
            meta, leaves, head, batches, held, base=base, objective=objective, descent=descent, state=state
        )
        found = torch.autograd.grad(
            value, [*leaves.values(), *leak], retain_graph=bool(leak), materialize_grads=True
        )
    return Hypergradient(
        value.detach(), dict(zip(leaves, found[: len(leaves)], strict=True)), found[len(leaves) :]
    )


def outlook(
    meta: MetaRegularizer,
    phi: Phi,
    head: Head,
    train: Sequence[Rows],
    held: Rows,
    *,
    base: Summand,
    objective: Summand,
    descent: Descent,
    state: State | None = None,
) -> Tensor:
    """The meta-objective after the lookahead, differentiable in all that asks for it. The head has to."""
    ahead, memory = head, descent.begin(head)
    for number in range(meta.steps):
        features, labels = train[number % len(train)]
        still = ahead if number else None
        ahead = ahead.alias() if number else ahead
        logits = ahead(features)
        loss = meta.loss(phi, features, logits, labels, base=base, head=ahead, state=state, still=still)
        gradient = torch.autograd.grad(loss, ahead.tensors, create_graph=True)
        ahead, memory = descent.move(ahead, gradient, memory)
    value: Tensor = objective(ahead(held.features), held.labels)  # type: ignore[operator]
    cost = meta.cost(phi, train[0].features)
    return value if cost is None else value + cost
