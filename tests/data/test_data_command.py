"""`calibrant data` as people and scripts use it: tables, JSON, exit codes, one sentence for each mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.core.registry import names
from calibrant.core.samples import Download
from calibrant.data import CIFAR10, store


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, args)], env={"COLUMNS": "120"})


def assert_refused(done: Result, message: str) -> None:
    """Exit 2, nothing on standard output, and a single sentence of ours on standard error."""
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("calibrant: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


@pytest.fixture
def copy(tmp_path: Path, noise) -> Path:
    """A small CIFAR-10 as an npz."""
    x, y = noise(12, 3, 32, 32), np.arange(12) % 10
    np.savez(tmp_path / "copy.npz", x_train=x[:10], y_train=y[:10], x_test=x[10:], y_test=y[10:])
    return tmp_path / "copy.npz"


def test_import_says_what_is_kept_and_where(copy: Path, tmp_path: Path) -> None:
    done = invoke("import", "cifar10", copy, "--data-dir", tmp_path / "data")
    assert done.exit_code == 0
    where = tmp_path / "data" / "cifar10.npz"
    told = re.escape(f"cifar10: 10 training and 2 test rows, 10 classes, in {where}")
    assert re.fullmatch(told + r" \(\d\d kB\)\n", done.stdout)
    assert done.stderr.startswith("note: as published, cifar10 has 50,000 training and 10,000 test rows")
    assert len(CIFAR10().load(tmp_path / "data").train) == 10
    again = invoke("fetch", "cifar10", "--data-dir", tmp_path / "data")
    assert (again.exit_code, again.stderr) == (0, "")
    assert again.stdout == done.stdout.rstrip() + ", fetched or imported before\n"


def test_list_shows_every_dataset_and_where_data_lie(copy: Path, tmp_path: Path) -> None:
    invoke("import", "cifar10", copy, "--data-dir", tmp_path / "data")
    done = invoke("list", "--data-dir", tmp_path / "data")
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line[:1].strip()}
    assert set(names("datasets")) <= set(lines)
    assert "here: 10 + 2 rows" in lines["cifar10"]
    assert "not here: fetch or import it" in lines["svhn"]
    assert "ready, needs no file" in lines["fashion-mini"]
    assert "your files: path=..." in lines["images"]
    assert f"data directory: {tmp_path / 'data'}" in done.stdout


def test_list_as_json(copy: Path, tmp_path: Path) -> None:
    invoke("import", "cifar10", copy, "--data-dir", tmp_path)
    done = invoke("list", "--json", "--data-dir", tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert sorted(found) == names("datasets")
    kept = store.look("cifar10", tmp_path)
    assert kept is not None
    assert found["cifar10"] == {
        "name": "cifar10",
        "summary": found["cifar10"]["summary"],
        "state": "kept",
        "downloads": [
            {
                "url": "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "checksum": "md5:c58f30108f718f92721af3b95e74349a",
            }
        ],
        "path": str(kept.path),
        "source": "copy.npz",
        "train": 10,
        "test": 2,
        "classes": 10,
        "bytes": kept.bytes,
        "sha256": kept.sha256,
    }
    assert found["synthetic"]["state"] == "ready"
    assert found["svhn"]["path"] is None


def test_import_and_fetch_as_json_are_the_same_document(copy: Path, tmp_path: Path) -> None:
    done = invoke("import", "cifar10", copy, "--data-dir", tmp_path, "--json")
    assert done.exit_code == 0
    assert done.stderr.startswith("note: ")
    found = json.loads(done.stdout)
    assert (found["name"], found["state"], found["train"], found["source"]) == (
        "cifar10",
        "kept",
        10,
        "copy.npz",
    )
    assert json.loads(invoke("fetch", "cifar10", "--data-dir", tmp_path, "--json").stdout) == found
    assert found in json.loads(invoke("list", "--data-dir", tmp_path, "--json").stdout)


def test_wrong_use_is_one_sentence(tmp_path: Path, copy: Path) -> None:
    assert_refused(invoke("import", "cifar10", tmp_path / "absent.npz"), "there is no such file")
    assert_refused(invoke("import", "cifar100", tmp_path), "here is neither the files train and test")
    assert_refused(invoke("import", "cifar", copy), "no dataset 'cifar'; did you mean 'cifar10'?")
    assert_refused(invoke("import", "images", copy), "write images(path=...) as the dataset")
    assert_refused(invoke("import", "svhn", copy, "--data-dir", copy), "cannot make the data directory")
    assert_refused(invoke("fetch", "synthetic"), "synthetic needs no files")
    assert_refused(invoke("fetch"), "missing argument 'NAME'")
    assert_refused(invoke("list", "--nope"), "no such option: --nope")


def test_fetch_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(CIFAR10, "downloads", (Download("http://127.0.0.1:9/c.npz", "md5:0"),))
    done = invoke("fetch", "cifar10", "--data-dir", tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    begun, told = done.stderr.splitlines()
    assert begun == "downloading http://127.0.0.1:9/c.npz"
    assert told.startswith("calibrant: 127.0.0.1:9 cannot be reached (Connection refused); run this again")
    assert told.endswith(f"run 'calibrant data import cifar10 c.npz --data-dir {tmp_path}'")


def test_the_console_script_finds_the_directory_of_the_environment(copy: Path, tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("calibrant")
    env = {**os.environ, "CALIBRANT_DATA": str(tmp_path / "mine"), "COLUMNS": "200"}
    done = subprocess.run(
        [script, "data", "import", "cifar10", str(copy)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "cifar10.npz").is_file()
    told = subprocess.run([script, "data"], env=env, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "import" in told.stdout
