"""Meta-regularisers in the loop: the steps of a plain loop, nothing for the network but the loss, the same bits."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.test_loop import Cut, cut_at, digest, with_recipe
from torch import nn

import calibrant as cal
from calibrant.core.errors import CalibrantError, InputError, SpecError
from calibrant.core.samples import InputShape
from calibrant.core.tensor_file import load_tensors
from calibrant.data.splits import split
from calibrant.meta import Head, Rows, descent, hypergradient, meta_regularizer, moved, remember
from calibrant.train import Run, recipe, train
from calibrant.train.feed import epoch_seed

RUN = Run(
    data="synthetic(classes=3, train=320, test=200)",
    model="mlp(width=8, depth=1)",
    loss="focal",
    meta="gamma_net(bound=5, lr=0.0001)",
    recipe=recipe("short", epochs=3, batch=32, lr=0.05, warmup=1),
)
KINDS = {
    "gamma_net": RUN,
    "its own optimiser, annealed": replace(
        RUN, meta='gamma_net(optimizer="sgd", anneal=True, lookahead="optimizer")', loss="focal + 0.1*mdca"
    ),
    "label_smoothing": replace(RUN, loss="ce", meta='label_smoothing(kind="class")', meta_objective="brier"),
    "weight_decay": replace(
        RUN, loss="ce", meta='weight_decay(granularity="unit")', meta_objective="ce + 0.5*dece"
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_are_those_of_a_plain_loop(tmp_path: Path, kind: str) -> None:
    run = KINDS[kind]
    trained = train(run, tmp_path / "run")
    published = run.dataset.load()
    splits = split(published, run.split, run.split_seed)
    torch.manual_seed(epoch_seed(run.seed, 0, "weights"))
    network: Any = run.network.make(published.shape, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    meta, base, goal = meta_regularizer(run.meta), run.objective, cal.loss(run.meta_objective)

    def order(rows: int, epoch: int, purpose: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(epoch_seed(run.seed, epoch, purpose))
        return torch.cat([torch.randperm(rows, generator=generator) for _ in range(20)])

    network.eval()
    first = splits.train.inputs[order(len(splits.train), 1, "order and views")[:32]]
    with torch.no_grad():
        phi = meta.init(network.features(first), 3, seed=epoch_seed(run.seed, 0, "phi"))
    memory = remember(meta, phi)
    network.train()
    for epoch in range(1, 4):
        rows, held = (
            order(len(splits.train), epoch, "order and views"),
            order(len(splits.meta), epoch, "held-out order"),
        )
        total, looked, steps = 0.0, 0.0, len(splits.train) // 32
        for step in range(steps):
            rate = run.recipe.rate(epoch - 1, step, steps)
            optimizer.param_groups[0]["lr"] = rate
            own, other = (each[32 * step : 32 * step + 32] for each in (rows, held))
            labels = splits.train.labels[own]
            features = network.features(splits.train.inputs[own])
            network.eval()
            with torch.no_grad():
                seen = Rows(network.features(splits.meta.inputs[other]), splits.meta.labels[other])
            network.train()
            found = hypergradient(
                meta,
                phi,
                Head.of(network.head),
                Rows(features, labels),
                seen,
                base=base,
                objective=goal,
                descent=descent(meta, optimizer, network.head),
            )
            phi, memory = moved(meta, phi, found.phi, memory, rate / 0.05)
            loss = meta.loss(
                phi, features, network.head(features), labels, base=base, head=Head.of(network.head)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
            looked += float(found.value)
        line = trained.history[epoch - 1]
        assert line["train_loss"] == pytest.approx(total / steps, rel=1e-4)  # float32, fused or not
        assert line["meta_loss"] == pytest.approx(looked / steps, rel=1e-4)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(trained.test.logits, network(splits.test.inputs), rtol=1e-3, atol=1e-3)
        told = meta.report(phi, network.features(splits.test.inputs))
    for name, value in told.items():
        assert trained.history[-1][name] == pytest.approx(value, rel=1e-2, abs=1e-6)
        assert f"val_{name}" in trained.history[-1]


def test_a_phi_that_stands_still_is_the_plain_loss(tmp_path: Path) -> None:
    """Gamma stays 1, so it is focal loss; that nothing else differs shows that held-out rows leave no trace."""
    still = train(replace(RUN, meta="gamma_net(lr=1e-30)"), tmp_path / "still")
    plain = train(replace(RUN, meta="", meta_objective="", loss="focal(gamma=1)"), tmp_path / "plain")
    for a, b in zip(still.history, plain.history, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        assert a["gamma_mean"] == pytest.approx(1, abs=1e-4)
        assert a["gamma_std"] < 1e-4
    torch.testing.assert_close(still.test.logits, plain.test.logits, rtol=1e-3, atol=1e-3)


def test_nothing_of_phi_is_left_in_the_weights(tmp_path: Path) -> None:
    found = train(RUN, tmp_path / "run")
    tensors, _ = load_tensors(found.directory / "weights.safetensors", "weights")
    network = RUN.network.make(RUN.dataset.load().shape, 3)
    assert set(tensors) == set(network.state_dict())
    assert {"gamma_mean", "gamma_std", "gamma_q05", "gamma_q95", "val_gamma_mean", "meta_loss"} <= set(
        found.history[0]
    )
    assert found.history[0]["gamma_mean"] != found.history[-1]["gamma_mean"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_cut_off_ends_in_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("calibrant.train.loop.SHARE", math.inf)
    whole = train(KINDS[kind], tmp_path / "whole")
    with pytest.raises(Cut):
        train(KINDS[kind], tmp_path / "cut", report=cut_at(2, done=True))
    assert digest(train(KINDS[kind], tmp_path / "cut", resume=True).directory) == digest(whole.directory)


def test_it_trains_with_all_that_a_loop_has(tmp_path: Path) -> None:
    run = replace(
        RUN,
        data="fashion-mini",
        model="small_cnn(width=2)",
        limit=256,
        augment="mixup(alpha=0.2)",
        recipe=recipe("short", epochs=2, batch=64, average=0.5, clip=1.0, precision="bf16"),
    )
    found = train(run, tmp_path / "run")
    assert all(math.isfinite(line["meta_loss"]) and line["gamma_mean"] > 0 for line in found.history)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "ce"}, "ce has no term 'focal'"),
        ({"meta": "label_smoothing"}, "has no term 'ce'"),
        ({"meta": "gama_net"}, "no meta-regulariser 'gama_net'; did you mean 'gamma_net'?"),
        ({"meta": ""}, "meta_objective 'ce + 0.5*sece"),
        ({"meta_objective": "sec"}, "no loss, penalty or surrogate 'sec'"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((SpecError, CalibrantError)) as told:
        replace(RUN, **changes)
    assert message in str(told.value)


def test_what_it_needs_is_asked_for_and_what_was_refused_holds_no_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"meta split, and this split has none; use split=8:1:1"):
        train(replace(RUN, split="9:1"), tmp_path / "run")

    class Whole:
        def make(self, shape: InputShape, classes: int) -> nn.Module:
            return nn.Sequential(nn.Linear(3, classes))

    with pytest.raises(InputError, match=r"Sequential cannot be taken apart"):
        train(replace(RUN, model="mine:make"), tmp_path / "run", model=Whole())
    assert train(with_recipe(RUN, epochs=1), tmp_path / "run").history
