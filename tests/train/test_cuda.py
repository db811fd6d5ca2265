"""The engine on a GPU: graphs and compilation change losses by rounding alone, and nothing waits inside an epoch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from calibrant.core.samples import InputShape, Published, Samples
from calibrant.train import Run, recipe, train
from calibrant.train.loop import Trained, _global_state
from calibrant.train.parallel import World
from calibrant.train.session import Session, open_session
from calibrant.train.step import Engine, executed

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="the engine on a GPU needs a GPU"),
    pytest.mark.filterwarnings("default"),
]

DEVICE = torch.device("cuda")


def images(rows: int, first: int) -> Samples:
    """Ten classes that differ by where they are bright, under noise."""
    g = torch.Generator().manual_seed(first)
    labels = torch.randint(0, 10, (rows,), generator=g)
    pixels = torch.randint(0, 200, (rows, 3, 32, 32), generator=g)
    for row, label in enumerate(labels.tolist()):
        pixels[row, :, 3 * label : 3 * label + 3] += 55
    return Samples(pixels.to(torch.uint8), labels, torch.arange(first, first + rows))


@pytest.fixture(scope="module")
def data() -> Published:
    names = tuple(str(c) for c in range(10))
    return Published("bands", names, InputShape("image", (3, 32, 32)), images(4000, 0), images(1000, 4000))


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with _global_state(DEVICE):
        yield


def opened(data: Published, **changes: object) -> Session:
    run = Run(model="resnet18(width=16)", recipe=recipe("short", epochs=2, precision="float32", **changes))
    return open_session(run, data, run.network, DEVICE, World(), mirrored=True)


def losses(session: Session, engine: Engine, steps: int = 10) -> list[float]:
    work = executed(session.step, engine)
    session.step.feed.begin(0, 1)
    session.step.rates.fill_(0.002)
    session.step.tally.begin(1)
    session.network.train()
    found, before = [], 0.0
    for _ in range(steps):
        work()
        now = float(session.step.tally.loss)
        found.append(now - before)
        before = now
    return found


@pytest.mark.parametrize("engine", ["graph", "compile"])
def test_a_captured_step_gives_the_losses_of_an_eager_one(data: Published, engine: Engine) -> None:
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        eager, captured = losses(opened(data), "eager"), losses(opened(data), engine)
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    assert eager[0] > eager[-1]
    # float32 sums in another order, grown over ten steps of training
    torch.testing.assert_close(torch.tensor(captured), torch.tensor(eager), rtol=1e-3, atol=1e-3)


def test_capturing_leaves_everything_as_it_was(data: Published) -> None:
    session, other = opened(data, average=0.99), opened(data, average=0.99)
    executed(session.step, "graph")
    for (name, value), before in zip(session.live().items(), other.live().values(), strict=True):
        assert torch.equal(value, before), name


def test_a_step_never_waits_for_the_device(data: Published) -> None:
    session = opened(data)
    session.step.feed.begin(0, 1)
    session.step.tally.begin(1)
    session.step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            session.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(session.step.tally.step) == 4


def test_the_data_take_little_more_than_their_bytes(data: Published) -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    held = data.train.inputs.to(DEVICE)
    plain = torch.cuda.memory_allocated() - before
    del held
    before = torch.cuda.memory_allocated()
    session = opened(data)
    own = sum(p.numel() * 4 for p in session.network.parameters())
    used = torch.cuda.memory_allocated() - before - 3 * own
    assert used < 1.2 * (plain + data.test.inputs.numel()) + 2**21


class _Stop(Exception):
    pass


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path: Path) -> None:
    run = Run(model="small_cnn", recipe=recipe("short", epochs=3))

    def go(where: Path, stop_at: int | None = None, resume: bool = False) -> Trained:
        def report(told: object) -> None:
            if getattr(told, "epoch", 0) == stop_at:
                raise _Stop

        return train(run, where, device="cuda", resume=resume, report=report)

    whole = go(tmp_path / "whole")
    with pytest.raises(_Stop):
        go(tmp_path / "cut", stop_at=3)
    resumed = go(tmp_path / "cut", resume=True)
    # cuDNN may choose kernels anew, and sums of atomics have no order: exact to this, stated in the documentation
    torch.testing.assert_close(resumed.test.logits, whole.test.logits, rtol=0.05, atol=0.25)
    assert [line["epoch"] for line in resumed.history] == [1, 2, 3]
