"""`calibrant calibrate` and `calibrant apply` as people and scripts use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import calibrant as cal
from calibrant import Predictions
from calibrant.cli import app
from calibrant.core.registry import describe
from calibrant.core.spec import split_specs

FULL = ("error", "nll", "brier", "ece(bins=15)", "smece")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "100"})


def calibrated(*args: object) -> Any:
    """The JSON of a command that has to succeed."""
    done = invoke(*args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def assert_refused(done: Result, told: str, folder: Path, before: set[Path]) -> None:
    """Exit 2, a single sentence of ours, and no file that was not there before."""
    assert done.exit_code == 2, done.stdout
    assert done.stdout == ""
    assert done.stderr.startswith("calibrant: ")
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
    assert set(folder.iterdir()) == before


@pytest.fixture
def folder(tmp_path: Path, draw) -> Path:
    for name, seed in (("val", 80), ("test", 81), ("more", 82)):
        logits, labels = draw(600, 3, seed=seed, sharpen=2.5)
        meta = {"split": name}
        Predictions(logits.astype(np.float32), labels, meta=meta).save(tmp_path / f"{name}.npz")
    return tmp_path


def test_calibrate_and_apply_give_what_python_gives(folder: Path) -> None:
    val, test = Predictions.load(folder / "val.npz"), Predictions.load(folder / "test.npz")
    wanted = cal.calibrator("temperature").fit(val.logits, val.labels)(test.logits)
    save, out = folder / "cal.safetensors", folder / "out.npz"
    calibrated(
        "calibrate",
        folder / "val.npz",
        folder / "test.npz",
        "--method",
        "temperature",
        "--out",
        out,
        "--save",
        save,
    )
    assert torch.equal(Predictions.load(out).logits, wanted)
    calibrated("apply", save, folder / "test.npz", "--out", folder / "again.npz")
    assert torch.equal(Predictions.load(folder / "again.npz").logits, wanted)
    assert torch.equal(cal.load_calibrator(save)(test.logits), wanted)
    assert Predictions.load(folder / "again.npz").sha256 == Predictions.load(out).sha256


def test_the_document_says_what_was_done(folder: Path) -> None:
    told = calibrated(
        "calibrate",
        folder / "val.npz",
        folder / "test.npz",
        "--method",
        "temperature",
        "--out",
        folder / "o.npz",
    )
    assert told["method"] == told["calibrator"] == str(cal.calibrator("temperature"))
    assert told["scope"] == "full"
    assert told["oracle"] is None
    assert told["fit"]["split"] == "val"
    assert told["fit"]["sha256"] == Predictions.load(folder / "val.npz").sha256
    assert set(told["before"]["metrics"]) == set(told["after"]["metrics"]) == set(FULL)
    assert told["before"]["source"] == str(folder / "test.npz")
    assert told["after"]["source"] == str(folder / "o.npz")
    for part, path in (("before", "test.npz"), ("after", "o.npz")):
        evaluation = cal.evaluate(Predictions.load(folder / path), FULL)
        assert told[part]["metrics"] == evaluation.to_json()["metrics"]
    assert told["after"]["metrics"]["nll"]["value"] < told["before"]["metrics"]["nll"]["value"]
    assert told["after"]["metrics"]["error"]["value"] == told["before"]["metrics"]["error"]["value"]


def test_the_table_shows_before_and_after(folder: Path) -> None:
    done = invoke(
        "calibrate",
        folder / "val.npz",
        folder / "test.npz",
        "--method",
        "temperature",
        "--out",
        folder / "o.npz",
    )
    assert done.exit_code == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("temperature(")
    assert lines[1].split() == ["metric", "before", "after"]
    assert [line.split()[0] for line in lines[2:7]] == list(FULL)
    assert lines[7].startswith(f"before: {folder / 'test.npz'}: overconfident by")
    assert lines[8].startswith(f"after:  {folder / 'o.npz'}: ")
    assert len(lines) == 9


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv"])
@pytest.mark.parametrize("probs", [False, True], ids=["logits", "probs"])
def test_every_kind_is_read_and_written(kind: str, probs: bool, folder: Path) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    for name in ("val", "test"):
        given = Predictions.load(folder / f"{name}.npz")
        if probs:
            given = Predictions.from_probs(given.logits.double().softmax(1), given.labels)
        given.save(folder / f"{name}.{kind}")
    out = folder / f"o.{kind}"
    calibrated(
        "calibrate", folder / f"val.{kind}", folder / f"test.{kind}", "--method", "temperature", "--out", out
    )
    found, given = Predictions.load(out), Predictions.load(folder / "test.npz")
    wanted = cal.calibrator("temperature").fit(
        *(lambda p: (p.logits, p.labels))(Predictions.load(folder / "val.npz"))
    )
    # the logarithm of a probability is its logit less a constant; float32 logits of size 5 are known to 3e-7
    torch.testing.assert_close(
        found.logits.double().softmax(1), wanted(given.logits).double().softmax(1), rtol=0, atol=1e-5
    )
    assert (found.probs is not None) == probs
    assert torch.equal(found.labels, given.labels)


def test_a_run_directory_stands_for_its_splits(folder: Path) -> None:
    (folder / "run" / "predictions").mkdir(parents=True)
    for name in ("val", "test"):
        (folder / f"{name}.npz").rename(folder / "run" / "predictions" / f"{name}.npz")
    run = folder / "run"
    args = ("--method", "temperature", "--save", folder / "cal")
    told = calibrated("calibrate", run, run, *args, "--out", folder / "o.npz")
    assert told["fit"]["split"] == "val"
    assert told["apply"] == str(run / "predictions" / "test.npz")
    again = calibrated("apply", folder / "cal", run, "--out", folder / "p.npz")
    assert again["after"]["metrics"] == told["after"]["metrics"]


def test_a_top_label_calibrator_adds_confidence_and_predicted(folder: Path) -> None:
    out = folder / "o.npz"
    told = calibrated(
        "calibrate", folder / "val.npz", folder / "test.npz", "--out", out,
        "--method", "temperature > histogram(bins=15)", "--save", folder / "cal",
    )  # fmt: skip
    assert told["scope"] == "top"
    given, found = Predictions.load(folder / "test.npz"), Predictions.load(out)
    assert torch.equal(found.logits, given.logits)
    assert torch.equal(found.predicted, given.logits.argmax(1))
    with np.load(out) as arrays:
        assert {"logits", "labels", "confidence", "predicted"} <= set(arrays)
    metrics = told["after"]["metrics"]
    assert metrics["ece(bins=15)"]["value"] < told["before"]["metrics"]["ece(bins=15)"]["value"]
    for spec in ("nll", "brier"):
        assert metrics[spec]["value"] is None
        assert "full probability vector" in metrics[spec]["reason"]
    evaluated = json.loads(invoke("evaluate", out, "--json").stdout)["metrics"]
    assert evaluated["ece(bins=15)"] == metrics["ece(bins=15)"]
    assert evaluated["classwise_ece(bins=15)"]["value"] is None
    shown = invoke("apply", folder / "cal", folder / "more.npz", "--out", folder / "p.npz").stdout
    assert "nll, brier: needs the full probability vector, and these are of a top-label calibrator" in shown
    compared = invoke("compare", folder / "test.npz", out, "--metrics", "error,ece", "--json")
    assert json.loads(compared.stdout)["metrics"]["error"]["difference"] == 0


def test_an_oracle_is_marked_and_shown(folder: Path) -> None:
    out = folder / "o.npz"
    args = ("calibrate", folder / "val.npz", folder / "val.npz", "--method", "temperature", "--out", out)
    before = set(folder.iterdir())
    assert_refused(
        invoke(*args), "they are the same file; use another split, or --allow-overlap", folder, before
    )
    told = calibrated(*args, "--allow-overlap")
    assert told["oracle"] == "they are the same file"
    assert told["after"]["oracle"] is True
    assert Predictions.load(out).meta["oracle"] is True
    assert "oracle: calibrated on what it is scored on" in invoke("evaluate", out).stdout
    assert json.loads(invoke("evaluate", out, "--json").stdout)["oracle"] is True
    assert "oracle: " in invoke(*args[:-1], folder / "q.npz", "--allow-overlap").stdout


def test_every_refusal_is_one_sentence_and_writes_nothing(folder: Path, draw) -> None:
    val, test, out = folder / "val.npz", folder / "test.npz", folder / "o.npz"
    given = Predictions.load(val)
    Predictions(given.logits[:50], given.labels[:50]).save(folder / "part.npz")
    Predictions(*draw(80, 3, seed=90), meta={"split": "val"}).save(folder / "val2.npz")
    Predictions(*draw(80, 4, seed=91)).save(folder / "four.npz")
    for name, first in (("a", 0), ("b", 79)):
        ids = np.arange(first, first + 80)
        Predictions(*draw(80, 3, seed=92 + first), ids=ids).save(folder / f"ids_{name}.npz")
    cal.TopLabel(np.full(50, 0.5), np.arange(50) % 2).save(folder / "pairs.npz")
    invoke(
        "calibrate",
        val,
        test,
        "--method",
        "histogram(bins=5)",
        "--out",
        folder / "top.npz",
        "--save",
        folder / "cal",
    )
    (folder / "bad.npz").write_bytes(b"PK no")
    (folder / "dir").mkdir()
    before = set(folder.iterdir())

    def refuse(told: str, *args: object) -> None:
        assert_refused(invoke(*args), told, folder, before)

    def method(
        fit: Path, apply: Path, spec: str = "temperature", to: Path = out, *more: object
    ) -> tuple[object, ...]:
        return ("calibrate", fit, apply, "--method", spec, "--out", to, *more)

    refuse("50 rows of the second are in the first", *method(val, folder / "part.npz"))
    refuse("both are the split 'val'", *method(val, folder / "val2.npz"))
    refuse("they have 1 id in common", *method(folder / "ids_a.npz", folder / "ids_b.npz"))
    refuse("it has 4 classes, and the calibrator is for 3", *method(val, folder / "four.npz"))
    refuse("holds (confidence, correct) pairs", *method(val, folder / "pairs.npz"))
    refuse("no calibrator can follow one", *method(val, folder / "top.npz"))
    refuse("no such file", *method(val, folder / "nowhere.npz"))
    refuse("did you mean 'temperature'", *method(val, test, "temperatur"))
    refuse("put that last", *method(val, test, "histogram(bins=5) > temperature"))
    refuse("histogram has no argument 'binz'", *method(val, test, "histogram(binz=5)"))
    refuse(".npz, .parquet and .csv are read and written", *method(val, test, "identity", folder / "o.txt"))
    refuse("there is no directory", *method(val, test, "identity", folder / "no" / "o.npz"))
    refuse("this would replace what is read", *method(val, test, "identity", test))
    refuse("this would replace what is read", *method(val, test, "identity", out, "--save", val))
    refuse("are the same file; give each its own", *method(val, test, "identity", out, "--save", out))
    refuse("there is no directory", *method(val, test, "identity", out, "--save", folder / "no" / "cal"))
    refuse("this is a directory", *method(val, test, "identity", out, "--save", folder / "dir"))
    refuse("they hold the same predictions", "apply", folder / "cal", val, "--out", out)
    refuse("both are the split 'val'", "apply", folder / "cal", folder / "val2.npz", "--out", out)
    refuse(
        "it has 4 classes, and the calibrator is for 3",
        "apply",
        folder / "cal",
        folder / "four.npz",
        "--out",
        out,
    )
    refuse("no calibrator can follow one", "apply", folder / "cal", folder / "top.npz", "--out", out)
    refuse("this is no safetensors file", "apply", folder / "bad.npz", folder / "more.npz", "--out", out)
    refuse("no such file", "apply", folder / "nowhere", folder / "more.npz", "--out", out)
    refuse(
        "this would replace what is read",
        "apply",
        folder / "more.npz",
        folder / "more.npz",
        "--out",
        folder / "more.npz",
    )
    refuse("missing option '--method'", "calibrate", val, test, "--out", out)
    refuse("missing option '--out'", "calibrate", val, test, "--method", "identity")


def test_nothing_is_written_where_the_calibrator_cannot_be_saved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(folder.iterdir())

    def full(fitted: object, path: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("calibrant.core.calibrator_file.save_calibrator", full)
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # the command closes standard output when a disk is full
    done = invoke(
        "calibrate", folder / "val.npz", folder / "test.npz", "--method", "identity",
        "--out", folder / "o.npz", "--save", folder / "cal",
    )  # fmt: skip
    assert_refused(done, "No space left on device", folder, before)


def test_doubts_of_a_fit_are_one_line_each(folder: Path) -> None:
    given = Predictions.load(folder / "val.npz")
    Predictions(given.logits, given.logits.argmax(1)).save(folder / "right.npz")
    done = invoke(
        "calibrate",
        folder / "right.npz",
        folder / "test.npz",
        "--method",
        "temperature",
        "--out",
        folder / "o.npz",
    )
    assert done.exit_code == 0
    assert done.stderr.startswith("calibrant: warning: no best temperature: every row is right")
    assert done.stderr.count("\n") == 1


def test_auto_tells_its_reasons_on_standard_error(folder: Path) -> None:
    args = (
        "calibrate",
        folder / "val.npz",
        folder / "test.npz",
        "--method",
        'auto(candidates="temperature")',
    )
    done = invoke(*args, "--out", folder / "o.npz", "--save", folder / "cal")
    assert done.exit_code == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("auto: ") for line in lines)
    told = calibrated(*args, "--out", folder / "o.npz")
    assert told["notes"] == lines
    assert told["method"].startswith("auto(")
    assert told["calibrator"] == str(cal.calibrator("temperature"))


def test_every_calibrator_goes_through_the_commands(folder: Path) -> None:
    for entry in describe("calibrators"):
        out, save = folder / f"{entry.name}.npz", folder / f"{entry.name}.cal"
        done = invoke(
            "calibrate",
            folder / "val.npz",
            folder / "test.npz",
            "--method",
            entry.name,
            "--out",
            out,
            "--save",
            save,
        )
        assert done.exit_code == 0, f"{entry.name}: {done.stderr}"
        done = invoke("apply", save, folder / "test.npz", "--out", folder / "again.npz")
        assert done.exit_code == 0, f"{entry.name}: {done.stderr}"
        one, two = Predictions.load(out), Predictions.load(folder / "again.npz")
        assert one.sha256 == two.sha256, entry.name


def test_they_are_listed() -> None:
    listed = json.loads(invoke("list", "calibrators", "--json").stdout)
    assert {each["name"] for each in listed} >= {"identity", "temperature", "histogram", "auto"}
    for each in listed:
        assert each["summary"]
        assert len(split_specs(each["canonical"])) == 1
        assert cal.calibrator(each["canonical"]) == cal.calibrator(each["name"])


def test_the_script_runs_as_a_program(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "calibrant", "calibrate", "val.npz", "test.npz", "--method", "temperature",
         "--out", "out.npz", "--json"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["out"] == "out.npz"
    assert sorted(path.name for path in folder.iterdir()) == ["more.npz", "out.npz", "test.npz", "val.npz"]
