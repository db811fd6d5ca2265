"""A run in progress: the data on its device, the network and everything else that training changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.objective import Objective, State
from calibrant.core.place import show
from calibrant.core.samples import Model, Published, Samples
from calibrant.data.splits import Splits, split
from calibrant.losses.mixup import Mixup
from calibrant.losses.pruning import Pruning
from calibrant.train.feed import Feed, Preparation, epoch_seed
from calibrant.train.learner import Learner, WithFeatures
from calibrant.train.parallel import World
from calibrant.train.recipe import Precision
from calibrant.train.run import Run
from calibrant.train.step import Step, Tally, optimiser


@dataclass(eq=False)
class Session:
    """Everything of one run on one device. `predictor` is what predicts: the network, or its running mean."""

    run: Run
    published: Published
    splits: Splits
    preparation: Preparation
    network: nn.Module
    predictor: nn.Module
    objective: Objective
    step: Step
    kept: Tensor
    best: dict[str, Tensor]
    pruning: Pruning | None

    @property
    def steps(self) -> int:
        """Whole batches in a full epoch."""
        return len(self.splits.train) // self.run.recipe.batch

    def live(self) -> dict[str, Tensor]:
        """The tensors that training changes, by name: what a checkpoint holds."""
        found = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        found |= {f"average.{name}": value for name, value in self.step.average.items()}
        found |= {f"best.{name}": value for name, value in self.best.items()}
        found |= {f"objective.{place}": value for place, value in enumerate(self.step.state)}
        for place, state in enumerate(self.step.optimizer.state.values()):
            found |= {f"optimizer.{place}.{k}": v for k, v in state.items() if isinstance(v, Tensor)}
        if self.step.learner is not None:
            found |= self.step.learner.live()
        return found | {"last_wrong": self.step.tally.last_wrong, "kept": self.kept}


def on_device(samples: Samples, device: torch.device) -> Samples:
    """Inputs and labels on the device; ids stay."""
    return Samples(samples.inputs.to(device), samples.labels.to(device), samples.ids)


def uses_bf16(precision: Precision, device: torch.device) -> bool:
    """Whether convolutions and products run in bfloat16."""
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def open_session(
    run: Run, published: Published, model: Model, device: torch.device, world: World, *, mirrored: bool
) -> Session:
    """Data, network and optimiser before the first step; weights are drawn from the run's seed on the CPU."""
    recipe, classes = run.recipe, len(published.classes)
    whole = split(published, run.split, run.split_seed, run.limit)
    if len(whole.train) < recipe.batch:
        raise InputError(
            f"{len(whole.train):,} training rows are fewer than one batch of {recipe.batch:,}; set a smaller batch"
        )
    if recipe.batch % world.size:
        raise InputError(f"a batch of {recipe.batch} cannot be shared by {world.size} processes evenly")
    splits = Splits(*(on_device(part, device) for part in (whole.train, whole.val, whole.meta, whole.test)))
    preparation = Preparation.fit(published.shape.kind, splits.train)
    mixup, pruning = None, None
    for piece in run.augmentations:
        mixup = piece if isinstance(piece, Mixup) else mixup
        pruning = piece if isinstance(piece, Pruning) else pruning
        if not isinstance(piece, Mixup | Pruning):
            raise CalibrantError(f"training does not know how to use {piece}")
    if mixup is not None and published.shape.kind == "text":
        raise InputError("mixup mixes numbers, and a text is a row of tokens; leave it out")
    check_objective(run.objective, classes, soft=mixup is not None)
    torch.manual_seed(epoch_seed(run.seed, 0, "weights"))
    network = tried(model.make(published.shape, classes), preparation, splits.train, classes, device)
    if published.shape.kind == "image":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    predictor = copy.deepcopy(network) if recipe.average else network
    feed = Feed(
        splits.train,
        preparation,
        recipe.batch,
        classes,
        crop=recipe.crop,
        flip=recipe.flip if mirrored else "none",
        mixup=mixup,
        part=(world.rank, world.size),
    )
    learner = begun_learner(run, network, classes, splits.meta, feed, world)
    step = Step(
        network=world.wrapped(network if learner is None else WithFeatures(network)),
        objective=run.objective,
        state=tuple(value.to(device) for value in run.objective.init()),
        optimizer=optimiser(network, recipe, device),
        feed=feed,
        tally=Tally.fresh(len(splits.train), device),
        rates=torch.zeros(len(splits.train) // recipe.batch, device=device),
        recipe=recipe,
        average=dict(predictor.state_dict()) if recipe.average else {},
        half=uses_bf16(recipe.precision, device),
        world=world,
        learner=learner,
    )
    best = {} if recipe.select == "last" else clones(predictor.state_dict())
    kept = torch.ones(len(splits.train), dtype=torch.bool)
    return Session(
        run,
        published,
        splits,
        preparation,
        network,
        predictor,
        run.objective,
        step,
        kept,
        best,
        pruning,
    )


def tried(
    network: nn.Module, preparation: Preparation, train: Samples, classes: int, device: torch.device
) -> nn.Module:
    """The network on its device, after a look at two rows: lazy layers get their sizes, a wrong output is refused."""
    network = network.to(device).eval()
    name = type(network).__name__
    try:
        with torch.no_grad():
            found = network(preparation(train.inputs[:2]))
    except CalibrantError:
        raise
    except Exception as error:
        shape = list(train.inputs.shape[1:])
        raise InputError(f"{name} fails on inputs of shape {shape}: {show(error, 200)}") from error
    wanted = (min(2, len(train)), classes)
    if not isinstance(found, Tensor) or tuple(found.shape) != wanted or not found.is_floating_point():
        given = (
            f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        )
        raise InputError(
            f"{name} gives {given} for {wanted[0]} rows of {classes} classes, not logits {list(wanted)}"
        )
    if not any(p.requires_grad for p in network.parameters()):
        raise InputError(f"{name} has no parameter that can be trained")
    return network.train()


def begun_learner(
    run: Run, network: nn.Module, classes: int, held: Samples, feed: Feed, world: World
) -> Learner | None:
    """The meta-regulariser of a run that has one, before its first step."""
    meta = run.meta_regularizer
    if meta is None:
        return None
    return Learner.begun(
        meta,
        run.objective,
        run.held_objective,
        network,
        classes,
        held,
        feed,
        world,
        seed=run.seed,
        peak=run.recipe.lr,
    )


def clones(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that training does not change."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def adapt(state: State, new: State) -> None:
    """Put what an adaptive loss has learned in place of what it knew."""
    for value, other in zip(state, new, strict=True):
        value.copy_(other)


def check_objective(objective: Objective, classes: int, *, soft: bool) -> None:
    """Try the criterion on two rows, so that what it refuses is said before anything is written."""
    labels = torch.tensor([0, 1])
    target = torch.nn.functional.one_hot(labels, classes).float() if soft else labels
    try:
        objective(torch.zeros(2, classes), target)
    except CalibrantError as error:
        raise CalibrantError(
            f"{objective} cannot be trained {'with mixup ' if soft else ''}here: {error}"
        ) from None
