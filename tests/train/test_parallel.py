"""One network on two processes, started as torchrun does it: the losses of one process, and one writer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant.train.directory import read_history

ROOT = Path(__file__).parents[2]
# A small learning rate: at a large one training itself multiplies what another order of the same sums changes.
CASES = {
    "batch loss and batch norm": [
        *("--data", "synthetic(classes=3, train=480, test=200)", "--model", "mlp(width=8)"),
        *("--loss", "ce + 0.5*sece(bandwidth=0.1)", "--set", "batch=64", "--set", "clip=1"),
    ],
    "what is learned about the loss": [
        *("--data", "synthetic(classes=3, train=480, test=200)", "--model", "mlp(width=8)"),
        *("--meta", "weight_decay(lr=0.0001)", "--meta-objective", "ce", "--set", "batch=48"),
    ],
    "images and mixup": [
        *("--data", "fashion-mini", "--model", "small_cnn(width=2)", "--set", "limit=256"),
        *("--set", "batch=64", "--augment", "mixup(alpha=0.2)", "--set", "average=0.5"),
    ],
}
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]


def command(where: Path, case: list[str], processes: int, port: int) -> subprocess.CompletedProcess[str]:
    start = [] if processes == 1 else [*TORCHRUN, "--master-port", str(port)]
    given = ["train", *case, "--epochs", "2", "--set", "lr=0.01", "--out", str(where), "--json"]
    return subprocess.run(
        [sys.executable, *start, "-m", "calibrant", *given],
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(where.parent)},
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        check=False,
    )


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("case", CASES)
def test_two_processes_with_half_the_batch_give_the_losses_of_one(tmp_path: Path, case: str) -> None:
    documents: list[dict[str, Any]] = []
    for processes in (1, 2):
        done = command(tmp_path / str(processes), CASES[case], processes, free_port())
        assert done.returncode == 0, done.stderr
        documents.append(json.loads(done.stdout))  # one document: only the first process speaks
    one, two = (read_history(tmp_path / str(processes)) for processes in (1, 2))
    for a, b in zip(one, two, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], abs=1e-5)
        assert b["val_nll"] == pytest.approx(a["val_nll"], abs=1e-4)
    assert "Warning" not in done.stderr
    assert documents[0]["run"] == documents[1]["run"]
    environment = json.loads((tmp_path / "2" / "env.json").read_text())
    assert environment["processes"] == 2
    with np.load(tmp_path / "1" / "learned.npz") as a, np.load(tmp_path / "2" / "learned.npz") as b:
        assert np.mean(a["learned_epoch"] == b["learned_epoch"]) > 0.98  # a tie may fall to the other side


def test_a_batch_that_cannot_be_shared_is_refused_by_all(tmp_path: Path) -> None:
    case = ["--data", "synthetic", "--model", "mlp", "--set", "batch=63"]
    done = command(tmp_path / "run", case, 2, free_port())
    assert done.returncode != 0
    assert "a batch of 63 cannot be shared by 2 processes evenly" in done.stderr
