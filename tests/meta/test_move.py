"""How phi is moved: torch's optimisers are the oracle, and a memory that was saved goes on to the same numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant.core.tensor_file import load_tensors, save_tensors
from calibrant.meta import GammaNet, LearnedLabelSmoothing, moved, remember


def start() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "attention": torch.randn(4, 3, generator=g).double(),
        "values": torch.randn(4, 1, generator=g).double(),
    }


def gradients(step: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(value.shape, generator=g).double() for name, value in start().items()}


@pytest.mark.parametrize("clip", [0.0, 0.7])
@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({"lr": 0.01, "momentum": 0.8, "eps": 1e-3}, lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.999), 1e-3)),
        ({"optimizer": "sgd", "lr": 0.1, "momentum": 0.6}, lambda p: torch.optim.SGD(p, 0.1, 0.6)),
        ({"optimizer": "sgd", "lr": 0.1, "momentum": 0.0}, lambda p: torch.optim.SGD(p, 0.1)),
    ],
    ids=["adam", "momentum", "sgd"],
)
def test_steps_are_those_of_torch(settings: dict[str, Any], make: Any, clip: float) -> None:
    piece = GammaNet(**settings, clip=clip)
    phi, leaves = start(), {name: value.requires_grad_() for name, value in start().items()}
    optimizer, memory = make(list(leaves.values())), remember(piece, phi)
    for step in range(6):
        gradient = gradients(step)
        for name, leaf in leaves.items():
            leaf.grad = gradient[name].clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(leaves.values(), clip)
        optimizer.step()
        phi, memory = moved(piece, phi, gradient, memory)
    for name, leaf in leaves.items():  # torch adds 1e-6 to the norm that it clips by
        torch.testing.assert_close(
            phi[name], leaf.detach(), rtol=1e-6 if clip else 1e-12, atol=1e-9 if clip else 0
        )


def test_annealing_follows_the_share_of_the_rate() -> None:
    for share in (1.0, 0.1, torch.tensor(0.1)):
        for piece, want in ((GammaNet(anneal=True), float(share)), (GammaNet(), 1.0)):
            phi, _ = moved(piece, start(), gradients(0), remember(piece, start()), share)
            step = (phi["attention"] - start()["attention"]).abs()
            torch.testing.assert_close(step, torch.full_like(step, 1e-3 * want), rtol=1e-5, atol=0)


def test_steps_are_projected() -> None:
    piece = LearnedLabelSmoothing(lr=1.0)
    phi = {"epsilon": torch.tensor(0.1)}
    down, _ = moved(piece, phi, {"epsilon": torch.tensor(1.0)}, remember(piece, phi))
    up, _ = moved(piece, phi, {"epsilon": torch.tensor(-1.0)}, remember(piece, phi))
    assert (down["epsilon"].item(), up["epsilon"].item()) == (0.0, 0.5)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_that_was_saved_goes_on_to_the_same_bits(tmp_path: Path, optimizer: Any) -> None:
    piece = GammaNet(optimizer=optimizer, clip=1.0)
    phi = start()
    memory, kept = remember(piece, phi), {}
    for step in range(6):
        if step == 3:
            kept = {f"phi.{name}": value for name, value in phi.items()} | {
                f"memory.{n}": v for n, v in memory.items()
            }
            save_tensors(tmp_path / "meta.safetensors", "checkpoint", kept, {})
        phi, memory = moved(piece, phi, gradients(step), memory)
    tensors, _ = load_tensors(tmp_path / "meta.safetensors", "checkpoint")
    assert set(tensors) == set(kept)
    again = {name.removeprefix("phi."): value for name, value in tensors.items() if name.startswith("phi.")}
    known = {
        name.removeprefix("memory."): value for name, value in tensors.items() if name.startswith("memory.")
    }
    for step in range(3, 6):
        again, known = moved(piece, again, gradients(step), known)
    assert all(torch.equal(again[name], phi[name]) for name in phi)


def test_what_is_handed_in_stays() -> None:
    piece, phi = GammaNet(clip=0.1), start()
    memory, gradient = remember(piece, phi), gradients(0)
    before = {
        name: value.clone()
        for name, value in (phi | memory | {f"g.{k}": v for k, v in gradient.items()}).items()
    }
    moved(piece, phi, gradient, memory)
    after = phi | memory | {f"g.{k}": v for k, v in gradient.items()}
    assert all(torch.equal(before[name], after[name]) for name in before)
