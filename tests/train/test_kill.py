"""A run that is killed at any moment, however often, and resumed, ends in the bits of the run that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.train.test_loop import digest

ROOT = Path(__file__).parents[2]
COMMAND = [
    *(sys.executable, "-c", "import math, calibrant.train.loop as loop; loop.SHARE = math.inf; "),
    *("train", "--data", "synthetic(classes=3, train=4000, test=1000)", "--model", "mlp(width=64)"),
    *("--epochs", "12", "--set", "batch=32", "--set", "average=0.9", "--augment", "pruning(every=3)"),
    *("--loss", "adafocal", "--resume"),
]
COMMAND[2] += "import sys; from calibrant.cli import app; app()"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def begin(out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "--out", str(out)],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )


def finish(out: Path) -> None:
    process = begin(out)
    _, told = process.communicate(timeout=240)
    assert process.returncode == 0, told.decode()


def killed(tmp_path: Path, times: int, seed: int) -> int:
    """Compare an uninterrupted run with one that is killed some times; the kills that hit a living process."""
    finish(tmp_path / "whole")
    chance, hits = random.Random(seed), 0
    out = tmp_path / "killed"
    for _ in range(times):
        process = begin(out)
        history = out / "history.jsonl"
        before = history.read_bytes() if history.exists() else b""
        deadline = time.monotonic() + 60  # it is there to end a test that hangs, and decides nothing
        while process.poll() is None and time.monotonic() < deadline:
            if history.exists() and history.read_bytes() != before:
                break
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(out)
    assert digest(out) == digest(tmp_path / "whole")
    assert not list(out.rglob("*checkpoint*"))
    return hits


def test_a_run_that_was_killed_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert killed(tmp_path, times=2, seed=0) >= 1


@pytest.mark.slow
def test_twenty_kills_change_no_bit(tmp_path: Path) -> None:
    assert sum(killed(tmp_path / str(seed), times=4, seed=seed) for seed in range(5)) >= 15
