"""What is done is never done again; what breaks leaves the old state or the new; what failed says why."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from tests.study.conftest import TOY, Inline, digest

from calibrant.core.errors import CalibrantError
from calibrant.core.predictions import Predictions
from calibrant.metrics.evaluate import evaluate
from calibrant.study import Outcome, read, run
from calibrant.train.directory import read_history


def execute(out: Path, text: str = TOY, **more: Any) -> tuple[Outcome, Inline]:
    executor = Inline()
    return run(read(text, "toy"), out, executor=executor, **more), executor


def stamps(out: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in out.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_finished_study_executes_nothing_and_changes_no_byte(tmp_path: Path) -> None:
    first, executor = execute(tmp_path)
    assert (first.executed, len(executor.begun), first.failures) == (8, 4, [])
    before = stamps(tmp_path)
    again, executor = execute(tmp_path)
    assert (again.executed, executor.begun) == (0, [])
    assert stamps(tmp_path) == before
    assert again.document == first.document

    more, executor = execute(tmp_path, settings={"seeds": "3"})
    assert (more.executed, len(executor.begun)) == (4, 2)
    after = stamps(tmp_path)
    assert {
        name: after[name] for name in before if "/cells/" in name or "/runs/" in name
    }.items() <= before.items()

    # a further calibrator reads the runs that are there
    wider = TOY.replace('raw = "identity"', 'raw = "identity"\nvector = "vector"')
    wide, executor = execute(tmp_path, wider)
    assert wide.executed == 4
    assert {name: after[name] for name in after if "/runs/" in name}.items() <= stamps(tmp_path).items()


def test_a_cell_holds_what_evaluate_says_of_its_predictions(tmp_path: Path) -> None:
    outcome, _ = execute(tmp_path)
    for cell in outcome.grid.cells:
        record = outcome.records[cell.key]
        directory = tmp_path / "runs" / cell.point.run.id
        predictions = Predictions.load(directory / "predictions" / "test.npz")
        if cell.calibrator == "raw":
            assert record.predictions == predictions.sha256
            found = evaluate(predictions, ["error", "nll", "ece(bins=15)"])
            assert {name: record.values[name] for name in found} == {
                k: each.value for k, each in found.items()
            }
        else:
            assert record.predictions != predictions.sha256
            assert record.values["temperature"] == pytest.approx(
                read_history(directory)[-1]["temperature"], rel=1e-6
            )  # both are exact to 1e-6 of ln T


def test_a_failed_run_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    text = TOY.replace('focal = "focal(gamma=3)"', 'focal = { loss = "focal(gamma=3)", lr = 1e30 }')
    outcome, _ = execute(tmp_path, text)
    assert len(outcome.failures) == 4
    assert all("lower the learning rate" in error for _, error in outcome.failures)
    assert outcome.document["cells"] == {"total": 8, "failed": 4}
    again, executor = execute(tmp_path, text)
    assert (again.executed, executor.begun, len(again.failures)) == (0, [], 4)
    retried, executor = execute(tmp_path, text, retry_failed=True)
    assert (retried.executed, len(executor.begun), len(retried.failures)) == (4, 2, 4)


def test_a_calibrator_that_fails_leaves_the_others_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr("calibrant.study.work.calibrate", broken)
    outcome, _ = execute(tmp_path)
    assert {cell.calibrator for cell, _ in outcome.failures} == {"temperature"}
    assert {error for _, error in outcome.failures} == {"RuntimeError: no such luck"}
    monkeypatch.undo()
    mended, executor = execute(tmp_path, retry_failed=True)
    assert (mended.executed, len(executor.begun), mended.failures) == (4, 4, [])


def test_missing_data_is_refused_before_anything_runs(tmp_path: Path) -> None:
    text = TOY.replace('"synthetic(classes=3, train=320, test=200)"', '"cifar10"').replace(
        "mlp(width=4)", "resnet32"
    )
    with pytest.raises(CalibrantError, match="calibrant data fetch cifar10"):
        execute(tmp_path / "out", text, data_dir=tmp_path / "none")
    assert not list((tmp_path / "out" / "runs").iterdir())


def test_a_directory_belongs_to_one_study_and_damage_is_seen(tmp_path: Path) -> None:
    outcome, _ = execute(tmp_path)
    with pytest.raises(CalibrantError, match="the study 'toy' lies here, not 'other'"):
        run(read(TOY, "other"), tmp_path, executor=Inline())
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    with pytest.raises(CalibrantError, match="not empty and holds no study"):
        execute(full)
    path = tmp_path / "cells" / f"{outcome.grid.cells[0].key}.json"
    whole = path.read_text()
    value = json.loads(whole)["result"]["values"]["error"]
    for text in (whole.replace(repr(value), "0.5"), whole[:-30], "[]"):
        path.write_text(text)
        with pytest.raises(CalibrantError, match="changed or damaged; delete it"):
            execute(tmp_path)
    path.unlink()
    mended, executor = execute(tmp_path)
    assert (mended.executed, len(executor.begun)) == (1, 1)
    assert path.read_text() == whole


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_state_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, number: int
) -> None:
    execute(tmp_path / "whole", settings={"seeds": "1"})
    wanted = digest(tmp_path / "whole")
    faults = 0
    while True:
        out = tmp_path / str(faults)
        shutil.copytree(tmp_path / "whole" / "runs", out / "runs")
        (out / "about.json").write_bytes((tmp_path / "whole" / "about.json").read_bytes())
        with monkeypatch.context() as patch:
            break_disk(patch, operation, number, after=faults)
            told = ""
            try:
                execute(out, settings={"seeds": "1"})
            except CalibrantError as error:
                told = str(error)
        if not told:
            break
        assert "cannot write this file" in told
        assert os.strerror(number) in told
        held = sorted(path.name for path in (out / "cells").iterdir())
        assert set(held) <= {path.name for path in (tmp_path / "whole" / "cells").iterdir()}
        execute(out, settings={"seeds": "1"})
        assert digest(out) == wanted
        shutil.rmtree(out)
        faults += 1
    assert faults >= 8  # four cells and four answers


def break_disk(patch: pytest.MonkeyPatch, operation: str, number: int, after: int) -> None:
    """Let one operation fail from its (after + 1)-th call on, as a disk does that is full or dead."""
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(number, os.strerror(number))

    if operation == "write":
        plain = Path.open

        def opening(self: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
            file = plain(self, mode, *args, **more)
            return Leaking(file, count) if mode == "xb" else file

        patch.setattr(Path, "open", opening)
        return
    own = getattr(os, operation)

    def failing(*args: Any) -> Any:
        count()
        return own(*args)

    patch.setattr(f"calibrant.core.files.os.{operation}", failing)


class Leaking:
    """A file of which half a write is on the disk when it fails."""

    def __init__(self, file: BinaryIO, count: Callable[[], None]) -> None:
        self.file, self.count = file, count

    def __enter__(self) -> "Leaking":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        self.file.write(data[: len(data) // 2])
        self.count()
        return self.file.write(data[len(data) // 2 :])
