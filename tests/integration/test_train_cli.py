"""`calibrant train` and `calibrant demo` as people and scripts use them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from calibrant.cli import app
from calibrant.train.directory import read_history

TINY = ["--data", "synthetic(classes=3, train=320, test=200)", "--model", "mlp(width=4)", "--set", "batch=32"]
NO_COLOUR = {"NO_COLOR": "1", "COLUMNS": "100", "OMP_NUM_THREADS": "1"}


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], env=NO_COLOUR)


def assert_refused(done: Result, message: str) -> None:
    assert done.exit_code == 2, done.stdout
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("calibrant: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_tells_each_epoch_and_ends_with_a_table(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = invoke("train", *TINY, "--epochs", 3, "--out", out)
    assert done.exit_code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    last = read_history(out)[-1]
    for told in (
        f"loss {last['train_loss']:.4f}",
        f"val error {100 * last['val_error']:.2f} %",
        "rows/s",
        "0:00 left",
    ):
        assert told in lines[-1]
    assert f"{100 * last['test_error']:.2f} %" in done.stdout
    assert f"next: calibrant evaluate {out / 'predictions' / 'test.npz'}" in done.stdout.replace("\n", "")
    assert invoke("evaluate", out / "predictions" / "test.npz", "--metrics", "nll").exit_code == 0


def test_the_summary_as_json(tmp_path: Path) -> None:
    done = invoke("train", *TINY, "--epochs", 2, "--out", tmp_path / "run", "--json")
    told = json.loads(done.stdout)
    assert done.stdout == json.dumps(told, sort_keys=True, indent=2) + "\n"
    assert told["directory"] == str(tmp_path / "run")
    assert (told["epochs"], told["epoch"]) == (2, 2)
    assert told["test_nll"] == pytest.approx(read_history(tmp_path / "run")[-1]["test_nll"], rel=1e-6)
    again = invoke("train", *TINY, "--epochs", 2, "--out", tmp_path / "run", "--json")
    assert (again.stdout, again.stderr) == (done.stdout, "")  # it was done already


def test_every_option_reaches_the_run(tmp_path: Path) -> None:
    given = [
        "--loss",
        "focal(gamma=2)",
        "--augment",
        "pruning",
        "--recipe",
        "sgd350",
        "--epochs",
        2,
        "--seed",
        5,
    ]
    more = ["--set", "lr=0.01", "--set", "split=9:1", "--set", "limit=64", "--device", "cpu"]
    done = invoke("train", *TINY, *given, *more, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "run" / "run.toml").read_text()
    for line in (
        'loss = "focal(gamma=2, detach=False)"',
        'augment = "pruning(fraction=0.1, every=20)"',
        "seed = 5",
        'split = "9:1"',
        "limit = 64",
        "epochs = 2",
        "lr = 0.01",
        "drops = [1]",
    ):
        assert line in text.splitlines(), text
    assert not (tmp_path / "run" / "predictions" / "meta.npz").exists()  # 9:1 has no meta split


def test_without_a_directory_the_run_goes_where_its_id_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke("train", *TINY, "--epochs", 1, "--json")
    assert json.loads(done.stdout)["directory"] == f"runs/{json.loads(done.stdout)['run']}"


def test_a_network_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n"
        "def linear(shape, classes):\n    return nn.Linear(shape.size[0], classes)\n"
        "def wrong(shape, classes):\n    return 3\n"
        "def broken(shape, classes):\n    raise KeyError('width')\n"
        "def more(shape, classes):\n    return nn.Linear(shape.size[0], classes + 1)\n"
        "def other(shape, classes):\n    return nn.Linear(shape.size[0] + 1, classes)\n"
        "def still(shape, classes):\n    return nn.Softmax(1)\n"
        "def lazy(shape, classes):\n    return nn.LazyLinear(classes)\n"
        "number = 3\n"
    )
    plain = [
        "train",
        "--data",
        "synthetic(classes=3, train=320, test=200)",
        "--epochs",
        1,
        "--set",
        "batch=32",
    ]
    done = invoke(*plain, "--model", "my_networks:linear", "--out", "run")
    assert done.exit_code == 0, done.stderr
    assert 'model = "my_networks:linear"' in Path("run/run.toml").read_text()
    for model, message in [
        ("my_networks:wrong", "gave 3, and no torch.nn.Module"),
        ("my_networks:broken", "my_networks:broken fails: KeyError: 'width'"),
        ("my_networks:more", "Linear gives torch.float32 [2, 4] for 2 rows of 3 classes, not logits [2, 3]"),
        ("my_networks:other", "Linear fails on inputs of shape [3]: mat1 and mat2"),
        ("my_networks:still", "Softmax has no parameter that can be trained"),
        ("my_networks:number", "is 3; give a function of (shape, classes)"),
        ("my_networks:nothing", "has no 'nothing'"),
        ("no_such_module:make", "cannot import no_such_module"),
    ]:
        assert_refused(invoke(*plain, "--model", model, "--out", "other"), message)
    lazy = invoke(*plain, "--model", "my_networks:lazy", "--out", "other")  # what was refused holds no place
    assert lazy.exit_code == 0, lazy.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--loss", "focl"], "no loss, penalty or surrogate 'focl'; did you mean 'focal'?"),
        (["--model", "resnet81"], "did you mean 'resnet18'?"),
        (["--data", "fashion-mnis"], "did you mean 'fashion-mnist'?"),
        (["--augment", "mixp"], "no augmentation 'mixp'; did you mean 'mixup'?"),
        (["--recipe", "shor"], "did you mean 'short'?"),
        (["--set", "lr"], "write key=value, such as lr=0.05"),
        (["--set", "lr=0.1", "--set", "lr=0.2"], "names lr twice"),
        (["--set", "lrr=0.1"], "did you mean 'lr'?"),
        (["--set", "lr=-1"], "lr=-1.0 is not possible"),
        (["--set", "split=8"], "no split scheme '8'"),
        (["--epochs", "0"], "--epochs"),
        (["--device", "cuda:x"], "there is no device"),
        (["--data", "cifar10", "--data-dir", "/nowhere"], "calibrant data fetch cifar10"),
        (["--model", "resnet18"], "resnet18 reads no vector input"),
        (["--set", "limit=1000000"], "a limit of 1,000,000 rows"),
    ],
)
def test_what_is_wrong_gets_one_sentence(tmp_path: Path, given: list[str], message: str) -> None:
    out = tmp_path / "run"
    assert_refused(invoke("train", *TINY, *given, "--out", out), message)
    assert not (out / "history.jsonl").exists()


def test_another_run_is_refused_and_a_broken_run_file_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert invoke("train", *TINY, "--epochs", 1, "--out", out).exit_code == 0
    other = invoke("train", *TINY, "--epochs", 1, "--out", out, "--seed", 3)
    assert_refused(other, "another run lies here (seed: 0 there, 3 asked for)")
    (out / "run.toml").write_text("seed = [")
    assert_refused(invoke("train", *TINY, "--epochs", 1, "--out", out), "run.toml: this is no TOML")


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "calibrant", "train", *TINY, "--epochs", "100000", "--out", str(out)]
    process = subprocess.Popen(
        command, env={**os.environ, **NO_COLOUR}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120  # against a test that hangs; it decides nothing
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "history.jsonl").exists() and (out / "history.jsonl").read_bytes().count(b"\n") > 2:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told == ""
    assert error.splitlines()[-2:] == [
        "the epochs that are done are kept; add --resume to go on",
        "calibrant: interrupted",
    ]
    assert (out / "checkpoint.safetensors").exists()


def test_the_demo_trains_calibrates_and_compares(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    first = invoke("demo", "--epochs", 1, "--out", out, "--json")
    assert first.exit_code == 0, first.stderr
    told = json.loads(first.stdout)
    assert set(told["losses"]) == {
        "ce",
        "label_smoothing(epsilon=0.1)",
        "focal(gamma=3)",
        "ce + 0.01*lp_norm(p=1)",
    }
    for row in told["losses"].values():
        assert set(row) == {"run", "temperature", "raw", "after temperature", "after histogram"}
        assert row["after histogram"]["nll"] is None  # a top-label calibrator has no full vector
        assert row["after temperature"]["error"] == row["raw"]["error"]
    again = invoke("demo", "--epochs", 1, "--out", out)
    assert again.exit_code == 0, again.stderr
    assert "epoch" not in again.stderr.replace("1 epochs", "")  # nothing is trained twice
    assert "every loss, before and after calibration" in again.stdout
    for loss in told["losses"]:
        assert loss in again.stdout
    assert (out / "ce" / "calibrated" / "test-histogram.npz").is_file()
