"""The local pool: the same bytes from one worker and from two, from workers that die, and after every kill."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.study.conftest import TOY, Inline, digest

from calibrant.study import Progress, read, run
from calibrant.study.executor import TRIES, LocalPool

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "calibrant", "study", "run", "toy.toml", "--out", "out"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_two_workers_give_the_bytes_of_none_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    study = read(TOY, "toy")
    alone = run(study, tmp_path / "inline", executor=Inline())
    pool = LocalPool(2, ["cpu"])
    killed: list[int] = []

    def kill_the_first(at: Progress) -> None:
        if at.state == "training" and not killed:
            worker = next(worker for worker in pool.live if worker.key == at.point.run.id)
            killed.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGKILL)

    both = run(study, tmp_path / "pool", executor=pool, report=kill_the_first)
    assert len(killed) == 1
    assert sum(pool.tries.values()) == 5  # one of four tasks was begun twice
    assert both.document == alone.document
    assert digest(tmp_path / "pool") == digest(tmp_path / "inline")


def test_a_task_whose_workers_die_is_a_failure_and_no_others(tmp_path: Path) -> None:
    study = read(TOY.replace("seeds = 2", "seeds = 1"), "toy")
    pool = LocalPool(1, ["cpu"])

    def kill(at: Progress) -> None:
        if at.state == "training" and at.point.at == (("loss", "focal"),):
            worker = next(worker for worker in pool.live if worker.key == at.point.run.id)
            os.kill(worker.process.pid, signal.SIGKILL)

    outcome = run(study, tmp_path, executor=pool, report=kill)
    errors = {cell.point.label: error for cell, error in outcome.failures}
    assert list(errors) == ["focal, seed 0"]
    assert f"its worker died {TRIES} times (signal 9)" in errors["focal, seed 0"]


def begin(where: Path, workers: int) -> subprocess.Popen[bytes]:
    (where / "toy.toml").write_text(TOY.replace("seeds = 2", "seeds = 3"), encoding="utf-8")
    command = [*COMMAND, "--workers", str(workers)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def killed(where: Path, times: int, seed: int, workers: int) -> int:
    """Kill a study at some moments and let it end; the kills that hit a living process."""
    chance, hits = random.Random(seed), 0
    cells = where / "out" / "cells"
    for _ in range(times):
        before = len(list(cells.glob("*.json"))) if cells.exists() else 0
        process = begin(where, workers)
        deadline = time.monotonic() + 120  # it is there to end a test that hangs, and decides nothing
        while process.poll() is None and time.monotonic() < deadline:
            if cells.exists() and len(list(cells.glob("*.json"))) > before:
                break
            time.sleep(0.005)
        time.sleep(chance.random() * 0.2)
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = begin(where, workers)
    _, told = process.communicate(timeout=240)
    assert process.returncode == 0, told.decode()
    return hits


def test_a_study_that_was_killed_ends_in_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    assert killed(tmp_path / "killed", times=1, seed=0, workers=1) >= 1
    out = tmp_path / "killed" / "out"
    run_whole(tmp_path)
    assert digest(out) == digest(tmp_path / "whole")
    assert not list(out.rglob("*.tmp"))


def run_whole(tmp_path: Path) -> None:
    text = TOY.replace("seeds = 2", "seeds = 3")
    run(read(text, "toy"), tmp_path / "whole", executor=Inline())


@pytest.mark.slow
def test_two_hundred_kills_change_no_byte(tmp_path: Path) -> None:
    run_whole(tmp_path)
    hits = 0
    for seed in range(50):
        where = tmp_path / str(seed)
        where.mkdir()
        hits += killed(where, times=4, seed=seed, workers=1 + seed % 2)
        assert digest(where / "out") == digest(tmp_path / "whole")
    assert hits >= 150
