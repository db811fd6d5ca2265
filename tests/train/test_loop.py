"""The loop as a whole: its losses are a plain loop's, its directory is complete, and a cut-off run ends the same."""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import calibrant as cal
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.samples import Classifier, InputShape
from calibrant.core.tensor_file import load_tensors
from calibrant.data.splits import split
from calibrant.train import Report, Run, Trained, recipe, train
from calibrant.train.feed import epoch_seed

DATA = "synthetic(classes=3, train=320, test=200)"
RUN = Run(
    data=DATA, model="mlp(width=8, depth=1)", recipe=recipe("short", epochs=4, batch=32, lr=0.1, warmup=1)
)
FILES = [
    "DONE",
    "env.json",
    "history.jsonl",
    "learned.npz",
    "predictions/meta.npz",
    "predictions/test.npz",
    "predictions/val.npz",
    "run.toml",
    "weights.safetensors",
]
TIMES = ("seconds", "eval_seconds")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Bits depend on the number of threads, and small networks are faster with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def with_recipe(run: Run, **changes: Any) -> Run:
    return replace(run, recipe=replace(run.recipe, **changes))


def digest(directory: Path) -> dict[str, str]:
    """A hash of every file that a run leaves, its times aside."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not path.is_file() or name in (".lock", "env.json"):
            continue
        raw = path.read_bytes()
        if name == "history.jsonl":
            lines = [json.loads(line) for line in raw.decode().splitlines()]
            raw = repr([{k: v for k, v in line.items() if k not in TIMES} for line in lines]).encode()
        if name.endswith("npz"):
            with np.load(path, allow_pickle=False) as arrays:  # a zip also holds the time
                raw = repr([(k, arrays[k].dtype.str, arrays[k].tobytes()) for k in arrays.files]).encode()
        found[name] = hashlib.sha256(raw).hexdigest()
    return found


class Cut(Exception):
    """What stops a run in these tests."""


def cut_at(epoch: int, *, done: bool) -> Callable[[Report], None]:
    def report(told: Report) -> None:
        if told.epoch == epoch and told.done == done:
            raise Cut

    return report


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    torch.set_num_threads(1)
    return train(RUN, tmp_path_factory.mktemp("loop") / "run")


# ---- against a loop that anybody would write ---------------------------------------------------------------------


def test_losses_and_predictions_are_those_of_a_plain_loop(trained: Trained) -> None:
    published = RUN.dataset.load()
    splits = split(published, RUN.split, RUN.split_seed)
    torch.manual_seed(epoch_seed(RUN.seed, 0, "weights"))
    network = RUN.network.make(published.shape, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    last_wrong = torch.zeros(len(splits.train), dtype=torch.int64)
    for epoch in range(1, 5):
        generator = torch.Generator().manual_seed(epoch_seed(RUN.seed, epoch, "order and views"))
        order = torch.randperm(len(splits.train), generator=generator)
        total, wrong, steps = 0.0, 0, len(order) // 32
        for step in range(steps):
            at = epoch - 1 + step / steps
            rise = min(1.0, at + 1 / steps)
            optimizer.param_groups[0]["lr"] = (
                0.1 * rise * 0.5 * (1 + math.cos(math.pi * max(0.0, (at - 1) / 3)))
            )
            rows = order[32 * step : 32 * step + 32]
            logits = network(splits.train.inputs[rows])
            loss = nn.functional.cross_entropy(logits, splits.train.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
            missed = logits.argmax(1) != splits.train.labels[rows]
            wrong += int(missed.sum())
            last_wrong[rows[missed]] = epoch
        line = trained.history[epoch - 1]
        assert line["train_loss"] == pytest.approx(total / steps, rel=1e-5)  # float32, fused or not
        assert line["train_error"] == wrong / (32 * steps)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(trained.test.logits, network(splits.test.inputs), rtol=1e-4, atol=1e-5)
        top = network(splits.train.inputs).amax(1)
    with np.load(trained.directory / "learned.npz") as arrays:  # the epoch from which a row stays right
        assert np.array_equal(arrays["learned_epoch"], (last_wrong + 1).numpy())
        assert np.array_equal(arrays["ids"], splits.train.ids.numpy())
        assert np.array_equal(arrays["labels"], splits.train.labels.numpy())
        np.testing.assert_allclose(arrays["max_logit"], top.numpy(), rtol=1e-4, atol=1e-5)
    assert last_wrong.unique().tolist() == [0, 1, 2, 3, 4]


def test_the_directory_is_complete(trained: Trained) -> None:
    where = trained.directory
    found = sorted(p.relative_to(where).as_posix() for p in where.rglob("*") if p.is_file())
    assert found == sorted([".lock", *FILES])
    assert json.loads((where / "DONE").read_text()) == {"run": RUN.id, "epoch": 4, "select": "last"}
    assert json.loads((where / "env.json").read_text())["engine"] == "eager"
    assert trained.summary["epochs"] == trained.summary["epoch"] == 4
    assert trained.summary["test_error"] == pytest.approx(trained.history[-1]["test_error"])


def test_predictions_carry_where_they_are_from(trained: Trained) -> None:
    splits = split(RUN.dataset.load(), RUN.split, RUN.split_seed)
    for name in ("val", "test", "meta"):
        found = cal.Predictions.load(trained.directory / "predictions" / f"{name}.npz")
        part = getattr(splits, name)
        assert np.array_equal(found.ids, part.ids.numpy())
        assert torch.equal(found.labels, part.labels)
        wanted = {"split": name, "run": RUN.id, "dataset": "synthetic", "seed": 0, "loss": "ce", "epoch": 4}
        assert wanted.items() <= found.meta.items()
    assert trained.history[-1]["val_nll"] == pytest.approx(
        cal.metric("nll")(trained.val.logits, trained.val.labels).value, rel=1e-6
    )


def test_the_weights_give_the_predictions_again(trained: Trained) -> None:
    tensors, meta = load_tensors(trained.directory / "weights.safetensors", "weights")
    published = RUN.dataset.load()
    network = RUN.network.make(published.shape, 3)
    network.load_state_dict(tensors)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(network(published.test.inputs), trained.test.logits, rtol=1e-5, atol=1e-6)
    assert meta["run"] == RUN.id
    assert meta["input"] == {"kind": "vector", "size": [3], "vocabulary": 0}


def test_history_has_what_studies_and_figures_read(trained: Trained) -> None:
    wanted = {"epoch", "lr", "rows", "seconds", "eval_seconds", "train_loss", "train_error", "temperature"}
    wanted |= {
        f"{part}_{key}"
        for part in ("val", "test")
        for key in ("error", "nll", "brier", "ece", "nll_scaled", "ece_scaled")
    }
    wanted |= {"test_temperature_oracle", "test_ece_oracle"}
    assert [set(line) for line in trained.history] == [wanted] * 4
    for line in trained.history:
        assert (
            line["test_ece_oracle"] <= min(line["test_ece"], line["test_ece_scaled"]) + 1e-3
        )  # the grid's step
    assert trained.history[-1]["train_loss"] < trained.history[0]["train_loss"]


# ---- the same bits -----------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits(trained: Trained, tmp_path: Path) -> None:
    assert digest(train(RUN, tmp_path / "again").directory) == digest(trained.directory)
    other = digest(train(replace(RUN, seed=1), tmp_path / "other").directory)
    assert other["weights.safetensors"] != digest(trained.directory)["weights.safetensors"]


def test_torchs_own_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(with_recipe(RUN, epochs=1), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


FULL = Run(
    data="fashion-mini",
    model="small_cnn(width=2)",
    loss="adafocal + 0.1*mdca",
    limit=256,
    augment="pruning(fraction=0.2, every=1)",
    recipe=recipe(
        "short", epochs=3, batch=64, average=0.5, select="nll", clip=1.0, optimizer="adamw", lr=0.01
    ),
)


@pytest.mark.parametrize("run", [RUN, FULL], ids=["plain", "all at once"])
@pytest.mark.parametrize(("epoch", "done"), [(1, False), (2, False), (2, True)])
def test_a_run_that_was_cut_off_ends_in_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, epoch: int, done: bool
) -> None:
    monkeypatch.setattr("calibrant.train.loop.SHARE", math.inf)  # a checkpoint after every epoch
    whole = train(run, tmp_path / "whole")
    with pytest.raises(Cut):
        train(run, tmp_path / "cut", report=cut_at(epoch, done=done))
    assert not (tmp_path / "cut" / "DONE").exists()
    if (epoch, done) != (1, False):  # before an epoch is done there is nothing to resume
        with pytest.raises(InputError, match="add --resume"):
            train(run, tmp_path / "cut")
    resumed = train(run, tmp_path / "cut", resume=True)
    assert digest(resumed.directory) == digest(whole.directory)
    assert not (tmp_path / "cut" / "checkpoint.safetensors").exists()


def test_a_run_that_is_done_is_only_read(trained: Trained) -> None:
    before = {p: p.stat().st_mtime_ns for p in trained.directory.rglob("*") if p.name != ".lock"}
    again = train(RUN, trained.directory, report=cut_at(1, done=False))
    assert again.history == trained.history
    assert {p: p.stat().st_mtime_ns for p in before} == before


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_another_runs_directory_is_refused_with_the_difference(trained: Trained) -> None:
    before = digest(trained.directory)
    with pytest.raises(InputError, match="seed: 0 there, 3 asked for"):
        train(replace(RUN, seed=3), trained.directory, resume=True)
    assert digest(trained.directory) == before


def test_a_directory_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty and holds no run"):
        train(RUN, tmp_path)
    with pytest.raises(InputError, match="this is a file"):
        train(RUN, tmp_path / "notes.txt")
    assert os.listdir(tmp_path) in (["notes.txt"], [".lock", "notes.txt"], ["notes.txt", ".lock"])


def test_two_processes_do_not_train_into_one_directory(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="file locks as POSIX has them")
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is training here"):
            train(RUN, tmp_path / "run")


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.train.loop.SHARE", math.inf)
    run = with_recipe(RUN, lr=3e5, warmup=4, weight_decay=0.0, momentum=0.0, nesterov=False)

    class Exploding(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 3)
            self.calls = 0

        def features(self, inputs: torch.Tensor) -> torch.Tensor:
            self.calls += self.training
            return inputs * (math.nan if self.calls > 16 else 1)

    class Maker:
        def make(self, shape: InputShape, classes: int) -> nn.Module:
            return Exploding()

    with pytest.raises(
        CalibrantError, match=r"became nan in epoch 3; the checkpoint in .* is the last good one"
    ):
        train(replace(run, model="mine:make"), tmp_path / "run", model=Maker())
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 2


def test_a_full_disk_is_told_and_the_run_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.train.loop.SHARE", math.inf)
    whole = train(RUN, tmp_path / "whole")
    real, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 8:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        train(RUN, tmp_path / "run")
    monkeypatch.setattr("os.fsync", real)
    assert digest(train(RUN, tmp_path / "run", resume=True).directory) == digest(whole.directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": recipe("short", batch=300)}, "256 training rows are fewer than one batch of 300"),
        ({"loss": "ce + mmce", "augment": "mixup"}, "cannot be trained with mixup"),
        ({"model": "resnet18"}, "resnet18 reads no vector input"),
        ({"model": "small_cnn", "data": "fashion-mini", "limit": 99_999}, "a limit of 99,999 rows"),
        ({"split": "1:1:1:1"}, "no split scheme"),
        ({"augment": "pruning(fraction=0.99, every=1)"}, "pruning has left"),
    ],
)
def test_what_cannot_be_trained_is_said_before_the_time_is_spent(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CalibrantError) as told:
        train(replace(RUN, **changes), tmp_path / "run")
    assert message in str(told.value)


@pytest.mark.parametrize("device", ["cuda", "mps", "gpu"])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match=r"GPU|runs on cpu and cuda|no device"):
        train(RUN, tmp_path / "run", device=device)
    assert not (tmp_path / "run").exists()


# ---- methods that reach into the loop ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        "label_smoothing",
        "focal(gamma=3)",
        "ce + 0.01*lp_norm(p=1)",
        "ce - 0.1*entropy",
        "ce + 2*mmce_weighted",
    ],
)
def test_any_objective_trains(tmp_path: Path, loss: str) -> None:
    found = train(with_recipe(replace(RUN, loss=loss), epochs=2), tmp_path / "run")
    assert found.history[-1]["test_error"] < 0.5


def test_an_adaptive_loss_learns_from_validation_alone(tmp_path: Path) -> None:
    plain = train(replace(RUN, loss="focal(gamma=1)"), tmp_path / "plain")
    adaptive = train(replace(RUN, loss="adafocal"), tmp_path / "adaptive")
    assert adaptive.history[0]["train_loss"] == plain.history[0]["train_loss"]  # before the first update
    assert adaptive.history[1]["train_loss"] != plain.history[1]["train_loss"]
    fixed = train(replace(RUN, loss="adafocal(rate=0)"), tmp_path / "fixed")
    assert fixed.history[-1]["train_loss"] == pytest.approx(plain.history[-1]["train_loss"], rel=1e-6)


def test_pruning_drops_rows_for_good(tmp_path: Path) -> None:
    run = replace(with_recipe(RUN, batch=8), augment="pruning(fraction=0.5, every=2)")
    found = train(run, tmp_path / "run")
    assert [line["rows"] for line in found.history] == [256, 256, 128, 128]


def test_the_chosen_epoch_is_the_best_on_val(tmp_path: Path) -> None:
    run = with_recipe(RUN, select="nll", lr=1.0, epochs=6)
    found = train(run, tmp_path / "run")
    scores = [line["val_nll"] for line in found.history]
    best = 1 + int(np.argmin(scores))
    assert json.loads((found.directory / "DONE").read_text())["epoch"] == best
    assert found.val.meta["epoch"] == best
    assert found.summary["val_nll"] == pytest.approx(scores[best - 1], rel=1e-6)


def test_the_running_mean_of_the_weights_predicts(tmp_path: Path) -> None:
    fast = train(
        with_recipe(RUN, average=1e-12), tmp_path / "fast"
    )  # forgets at once: the weights themselves
    plain = train(RUN, tmp_path / "plain")
    torch.testing.assert_close(fast.test.logits, plain.test.logits, rtol=1e-5, atol=1e-5)
    slow = train(with_recipe(RUN, average=0.9), tmp_path / "slow")
    assert slow.history[0]["train_loss"] == plain.history[0]["train_loss"]
    assert not torch.allclose(slow.test.logits, plain.test.logits, rtol=1e-2)


def test_the_package_can_be_called_by_its_name(tmp_path: Path) -> None:
    found = cal.train(
        cal.Run(data=DATA, model="mlp", recipe=cal.recipe(epochs=1, batch=64)), tmp_path / "run"
    )
    assert isinstance(found, cal.Trained)
    assert found.directory == tmp_path / "run"
