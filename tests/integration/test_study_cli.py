"""`calibrant study` as people and scripts use it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from tests.study.conftest import TOY
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.study import shipped

NO_COLOUR = {"NO_COLOR": "1", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
ONE = TOY.replace("seeds = 2", "seeds = 1")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, ["study", *(str(arg) for arg in args)], env=NO_COLOUR)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "toy.toml"
    path.write_text(ONE, encoding="utf-8")
    return path


def test_the_list_names_every_study_and_its_claims() -> None:
    done = invoke("list", "--json")
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert sorted(found) == shipped()
    assert found["calibratable"]["claims"] == ["002-a", "002-b", "002-c", "002-d"]
    text = invoke("list").stdout
    assert all(name in text for name in found)


def test_list_knows_studies_too() -> None:
    done = CliRunner().invoke(app, ["list", "studies", "--json"], env=NO_COLOUR)
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == shipped()
    assert all(row["summary"].endswith("?") and row["parameters"] == [] for row in rows)
    assert "pipeline" in CliRunner().invoke(app, ["list"], env=NO_COLOUR).stdout


def test_show_prints_the_grid_and_an_estimate(toy: Path) -> None:
    done = invoke("show", toy, "--set", "seeds=3", "--workers", 2, "--json")
    plan = json.loads(done.stdout)
    assert (plan["runs"], plan["cells"], plan["runs_due"], plan["workers"]) == (6, 12, 6, 2)
    assert 0 < plan["seconds"] < 600  # a toy; it decides that there is an estimate, and no more
    assert plan["axes"] == {"loss": ["ce", "focal"]}
    text = invoke("show", toy, "--workers", 1).stdout
    assert "2 runs, 4 cells; 2 runs are to be done: about" in text
    assert "with 1 worker here" in text
    far = invoke("show", "calibratable", "--set", "scale=full", "--data-dir", toy.parent / "none").stdout
    assert "80 runs, 320 cells" in far
    assert "calibrant data fetch svhn" in far


def test_run_tells_each_run_answers_and_does_nothing_twice(toy: Path) -> None:
    done = invoke("run", toy, "--workers", 1)
    assert done.exit_code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["1/2 ce, seed 0", "2/2 focal, seed 0"]
    assert all("% raw" in line and "% temperature" in line for line in lines)
    assert "not the document's scale: toy" in done.stdout
    assert "4 cells executed; results in studies/toy/results.csv" in done.stdout
    assert "undecided" in done.stdout
    again = invoke("run", toy, "--json")
    document = json.loads(again.stdout)
    assert (document["executed"], document["cells"], again.stderr) == (0, {"failed": 0, "total": 4}, "")
    assert again.stdout == json.dumps(document, sort_keys=True, indent=2) + "\n"
    assert (toy.parent / "studies" / "toy" / "tables.md").is_file()


def test_failures_are_told_and_end_with_1(toy: Path) -> None:
    toy.write_text(ONE.replace('focal = "focal(gamma=3)"', 'focal = { loss = "focal", lr = 1e30 }'))
    done = invoke("run", toy, "--workers", 1)
    assert done.exit_code == 1
    assert "calibrant: failed: focal, seed 0, raw: " in done.stderr
    assert "lower the learning rate" in done.stderr
    assert "2 of 4 cells have failed" in done.stdout
    again = invoke("run", toy, "--workers", 1)
    assert (again.exit_code, "0 cells executed" in again.stdout) == (1, True)
    retried = invoke("run", toy, "--workers", 1, "--retry-failed")
    assert (retried.exit_code, "2 cells executed" in retried.stdout) == (1, True)


@pytest.mark.parametrize(
    ("old", "new", "given", "message"),
    [
        (
            "epochs = 3",
            "epocs = 3",
            [],
            "toy.toml: line 11: there is no setting 'epocs'; did you mean 'epochs'?",
        ),
        ("", "", ["--set", "scale=huge"], "toy has no scale 'huge'; there is full, tiny"),
        ("", "", ["--set", "loss=ce"], "loss is an axis of toy"),
        ("", "", ["--set", "seeds"], "write key=value"),
        ("", "", ["--workers", "0"], "--workers"),
        ("", "", ["--out", "toy.toml"], "this is a file"),
    ],
)
def test_what_is_wrong_gets_one_sentence(
    toy: Path, old: str, new: str, given: list[str], message: str
) -> None:
    toy.write_text(ONE.replace(old, new) if old else ONE)
    done = invoke("run", toy, *given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (toy.parent / "studies").exists()


def test_a_check_fails_where_a_claim_does(toy: Path) -> None:
    from calibrant.study import grid, load
    from calibrant.study.store import Record, opened_store

    planned = grid(load(toy), {"seeds": "4"})
    with opened_store(toy.parent / "out", "toy") as store:
        for cell in planned.cells:  # focal after temperature is worse in every seed
            ece = (0.2 if cell.point.at[0][1] == "focal" else 0.1) + cell.point.seed**2 / 1000
            store.write(cell, Record({"ece(bins=15)": ece * (1 + ece / 100)}, {}, "0" * 64))
    given = ["run", toy, "--out", "out", "--set", "seeds=4"]
    assert invoke(*given).exit_code == 0
    done = invoke(*given, "--check")
    assert done.exit_code == 1
    assert "check failed: one fails" in done.stderr


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(toy: Path) -> None:
    endless = 'focal = { loss = "focal(gamma=3)", epochs = 100000 }'
    toy.write_text(ONE.replace('focal = "focal(gamma=3)"', endless))
    command = [sys.executable, "-m", "calibrant", "study", "run", "toy.toml", "--workers", "1"]
    process = subprocess.Popen(
        command, env={**os.environ, **NO_COLOUR}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    cells = toy.parent / "studies" / "toy" / "cells"
    deadline = time.monotonic() + 120  # against a test that hangs; it decides nothing
    while time.monotonic() < deadline and process.poll() is None:
        if cells.exists() and len(list(cells.glob("*.json"))) == 2:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert told == ""
    assert error.splitlines()[-2:] == [
        "what is done is kept; the same command goes on with the rest",
        "calibrant: interrupted",
    ]
    assert "Traceback" not in error
    assert len(list(cells.glob("*.json"))) == 2
