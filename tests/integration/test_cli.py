"""The commands as people and scripts use them: exit codes, streams, JSON, and one sentence for each mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import calibrant as cal
from calibrant.cli import app
from calibrant.core.registry import names
from calibrant.metrics.evaluate import DEFAULT


def invoke(*args: object, **env: str) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "100", **env})


def document(*args: object) -> Any:
    done = invoke(*args, "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def assert_refused(done: Result, message: str) -> None:
    """Exit 2, nothing on standard output, and a single sentence of ours on standard error."""
    assert done.exit_code == 2, done.stdout
    assert done.stdout == ""
    assert done.stderr.startswith("calibrant: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert isinstance(done.exception, SystemExit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, draw) -> Path:
    where = tmp_path_factory.mktemp("cli")
    logits, labels = draw(400, 3, seed=70, sharpen=3)
    np.savez(where / "a.npz", logits=logits, labels=labels)
    np.savez(where / "b.npz", logits=logits / 3, labels=labels)
    np.savez(where / "other.npz", logits=logits, labels=(labels + 1) % 3)
    np.savez(where / "short.npz", logits=logits[:50], labels=labels[:50])
    np.savez(where / "right.npz", logits=logits, labels=logits.argmax(1))
    np.savez(where / "pairs.npz", confidence=np.linspace(0.3, 0.9, 60), correct=np.arange(60) % 2)
    probs = np.array([[1, 0.0], [0.5, 0.5], [0.25, 0.75]])
    np.savez(where / "impossible.npz", probs=probs, labels=np.array([1, 0, 1]))
    (where / "broken.npz").write_bytes(b"PK no")
    return where


# ---- evaluate ---------------------------------------------------------------------------------------------------


def test_json_has_the_promised_shape(folder: Path) -> None:
    found = document("evaluate", folder / "a.npz")
    assert set(found) == {"n", "classes", "source", "metrics"}
    assert (found["n"], found["classes"]) == (400, 3)
    assert found["source"] == str(folder / "a.npz")
    assert set(found["metrics"]) == set(DEFAULT)
    with np.load(folder / "a.npz") as arrays:
        expected = cal.evaluate(cal.Predictions(arrays["logits"], arrays["labels"]))
    for spec, told in found["metrics"].items():
        assert set(told) == {"canonical", "value", "ci", "null"}
        assert told["canonical"] == expected[spec].spec
        assert told["value"] == expected[spec].value
        if told["ci"] is not None:
            low, high = told["ci"]
            assert low <= high
        if told["null"] is not None:
            assert set(told["null"]) == {"mean", "q95", "p"}
            assert 0 < told["null"]["p"] <= 1
    assert {spec for spec, told in found["metrics"].items() if told["null"] is None} == {
        "error",
        "nll",
        "brier",
        "auroc",
    }


def test_json_is_sorted_and_repeats(folder: Path) -> None:
    one, two = (invoke("evaluate", folder / "a.npz", "--json").stdout for _ in range(2))
    assert one == two
    assert one == json.dumps(json.loads(one), sort_keys=True, indent=2) + "\n"
    assert invoke("evaluate", folder / "a.npz", "--json", "--seed", "1").stdout != one


def test_a_metric_that_does_not_apply_is_null_with_its_reason(folder: Path) -> None:
    found = document("evaluate", folder / "pairs.npz")
    assert found["classes"] is None
    for spec in ("nll", "brier", "classwise_ece(bins=15)"):
        assert found["metrics"][spec]["value"] is None
        assert "full probability vector" in found["metrics"][spec]["reason"]
    assert found["metrics"]["ece(bins=15)"]["value"] > 0
    ranked = document("evaluate", folder / "right.npz", "--metrics", "auroc")["metrics"]["auroc"]
    assert set(ranked) == {"canonical", "value", "reason"}


def test_an_infinite_metric_is_null_with_the_number_of_rows(folder: Path) -> None:
    told = document("evaluate", folder / "impossible.npz", "--metrics", "nll,brier")["metrics"]
    assert told["nll"]["value"] is None
    assert told["nll"]["rows"] == 1
    assert "probability 0 in 1 row" in told["nll"]["reason"]
    assert told["brier"]["value"] == pytest.approx((2 + 0.5 + 0.125) / 3, abs=1e-9)


def test_several_files_give_a_list_in_their_order(folder: Path) -> None:
    found = document("evaluate", folder / "b.npz", folder / "a.npz", "--metrics", "ece")
    assert [Path(each["source"]).name for each in found] == ["b.npz", "a.npz"]
    assert document("evaluate", folder / "a.npz", "--metrics", "ece") == found[1]


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--metrics", "nll,ece(bins=20)"], ["nll", "ece(bins=20)"]),
        (["--metrics", "nll", "--metrics", "ece(bins=20)"], ["nll", "ece(bins=20)"]),
        (["--metrics", " mce( bins = 5,min_count=2 ) ,  nll"], ["mce( bins = 5,min_count=2 )", "nll"]),
        (["--metrics", "ece,ece(bins=15)"], ["ece", "ece(bins=15)"]),
        (["--metrics", "nll,nll"], ["nll"]),
        (["--metrics", "nll,"], ["nll"]),
    ],
)
def test_metrics_split_at_outer_commas_and_repeat(options: list[str], keys: list[str], folder: Path) -> None:
    found = document("evaluate", folder / "short.npz", *options)["metrics"]
    assert sorted(found) == sorted(keys)  # as typed, white space normalised
    for spec, told in found.items():
        assert cal.metric(told["canonical"]) == cal.metric(spec)


def test_the_table_in_words(folder: Path) -> None:
    done = invoke("evaluate", folder / "a.npz")
    assert done.exit_code == 0
    assert done.stderr == ""
    assert "400 rows, 3 classes" in done.stdout
    with np.load(folder / "a.npz") as arrays:
        expected = cal.evaluate(cal.Predictions(arrays["logits"], arrays["labels"]))
    for spec, found in expected.items():
        line = next(line for line in done.stdout.splitlines() if line.startswith(spec))
        shown = f"{found.value:.4f}" if spec in ("nll", "auroc") else f"{100 * found.value:.2f} %"
        assert shown in line
    assert expected.verdict in done.stdout
    assert expected.verdict.startswith("overconfident by")
    assert "p < 0.001" in done.stdout
    assert "●" in done.stdout


def test_the_verdict_of_a_calibrated_model_is_no_alarm(tmp_path: Path, draw) -> None:
    logits, labels = draw(1000, 3, seed=71, sharpen=1)
    np.savez(tmp_path / "c.npz", logits=logits, labels=labels)
    out = invoke("evaluate", tmp_path / "c.npz").stdout
    assert "no miscalibration of the top label to be seen" in out
    logits, labels = draw(1000, 3, seed=72, sharpen=0.4)
    np.savez(tmp_path / "u.npz", logits=logits, labels=labels)
    assert "underconfident by" in invoke("evaluate", tmp_path / "u.npz").stdout


def test_pairs_and_odd_corners_are_shown_too(folder: Path, tmp_path: Path) -> None:
    out = invoke("evaluate", folder / "pairs.npz").stdout
    assert "(confidence, correct) pairs" in out
    assert "nll, brier, classwise_ece(bins=15): needs the full probability vector" in out
    np.savez(tmp_path / "one.npz", logits=np.array([[1000.0, 0]]), labels=np.array([0]))
    done = invoke("evaluate", tmp_path / "one.npz")
    assert done.exit_code == 0, done.stderr
    assert "1 row" in done.stdout
    assert "nothing to rank" in done.stdout


# ---- --fail-if --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        (["ece(bins=15)>0.02"], 1),
        (["ece(bins=15) > 0.02"], 1),
        (["ece(bins=15)>=0.02"], 1),
        (["ece( bins = 15 )>2e-2"], 1),
        (["ece(bins=15)>0.9"], 0),
        (["ece>0.9"], 0),
        (["auroc<0.99"], 1),
        (["auroc<=0.01"], 0),
        (["overconfidence<-0.01"], 0),
        (["overconfidence>-0.01"], 1),
        (["ece(bins=15)>0.9", "nll>0"], 1),
        (["ece(bins=15)>0.9", "nll>100"], 0),
        (["sece(bandwidth=0.1)>0"], 1),  # not among the defaults
    ],
)
def test_checks(checks: list[str], code: int, folder: Path) -> None:
    options = [part for check in checks for part in ("--fail-if", check)]
    done = invoke("evaluate", folder / "a.npz", "--metrics", "ece(bins=15)", *options, "--json")
    assert done.exit_code == code
    assert set(json.loads(done.stdout)["metrics"]) == {
        "ece(bins=15)"
    }  # the document comes in any case, and no more
    assert ("check failed" in done.stderr) == bool(code)
    if code:
        assert str(folder / "a.npz") in done.stderr


def test_any_file_that_fails_fails_all_and_is_named(folder: Path) -> None:
    done = invoke("evaluate", folder / "a.npz", folder / "b.npz", "--metrics", "ece", "--fail-if", "ece>0.1")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1
    assert "a.npz: ece is 0." in done.stderr
    assert "b.npz" not in done.stderr


def test_a_metric_without_a_value_passes_no_check(folder: Path) -> None:
    done = invoke("evaluate", folder / "right.npz", "--fail-if", "auroc<0.5", "--json")
    assert done.exit_code == 1
    assert "has no value" in done.stderr
    done = invoke("evaluate", folder / "impossible.npz", "--metrics", "ece", "--fail-if", "nll>1", "--json")
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("ece(bins=15)", "cannot read"),
        ("ece>x", "cannot read"),
        ("ece==0.1", "ece="),
        ("ece>nan", "cannot read"),
        ("ece>1.2.3", "is no number"),
        (">0.1", "cannot read"),
        ("", "cannot read"),
        ("ecee>0.1", "did you mean 'ece'?"),
        ("ece(bin=3)>0.1", "did you mean 'bins'?"),
        ("0.1>ece", "cannot read"),
    ],
)
def test_a_check_that_cannot_be_read(check: str, message: str, folder: Path) -> None:
    done = invoke("evaluate", folder / "a.npz", "--fail-if", check)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert message in done.stderr or "is no name or call" in done.stderr


# ---- wrong use --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "a.npz", "--metrics", "ecee"], "no metric 'ecee'; did you mean 'ece'?"),
        (["evaluate", "a.npz", "--metrics", "ece(bin=3)"], "ece has no argument 'bin'; did you mean 'bins'?"),
        (["evaluate", "a.npz", "--metrics", "ece(bins=0)"], "bins must be at least 1, not 0"),
        (["evaluate", "a.npz", "--metrics", "ece(bins=1e30)"], "bins"),
        (["evaluate", "a.npz", "--metrics", "ece(15)"], "ece(NAME=15)"),
        (["evaluate", "a.npz", "--metrics", "ece(bins=15"], "cannot read"),
        (["evaluate", "a.npz", "--metrics", "2*ece"], "sum or a multiple"),
        (["evaluate", "a.npz", "--metrics", ""], "names no metric"),
        (["evaluate", "a.npz", "--metrics", " , "], "names no metric"),
        (["evaluate", "missing.npz"], "missing.npz"),
        (["evaluate", "broken.npz"], "broken.npz"),
        (["evaluate", "."], "directory"),
        (["evaluate", "a.npz", "missing.npz"], "missing.npz"),
        (["compare", "a.npz", "other.npz"], "different labels"),
        (["compare", "a.npz", "short.npz"], "400 and 50 rows"),
        (["compare", "a.npz", "pairs.npz"], "rows"),
        (["compare", "a.npz", "missing.npz"], "missing.npz"),
        (["compare", "a.npz", "b.npz", "--metrics", "ecee"], "did you mean 'ece'?"),
        (["compare", "a.npz", "b.npz", "--metrics", ""], "names no metric"),
        (["list", "metric"], "did you mean 'metrics'?"),
        (["list", "nonsense"], "no kind 'nonsense'"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    arguments: list[str] | Any, message: str, folder: Path, monkeypatch
) -> None:
    monkeypatch.chdir(folder)
    assert_refused(invoke(*arguments), message)
    if arguments[0] != "list":
        assert_refused(invoke(*arguments, "--json"), message)


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate"],
        ["compare", "a.npz"],
        ["compare", "a.npz", "b.npz", "c.npz"],
        ["evaluate", "a.npz", "--nonsense"],
        ["evaluate", "a.npz", "--seed", "x"],
        ["evaluate", "a.npz", "--seed", "-1"],
        ["compare", "a.npz", "b.npz", "--resamples", "3"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_2(arguments: list[str], folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("calibrant: ")
    assert "--help" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_typo_is_told_before_the_file_is_read(folder: Path) -> None:
    assert_refused(invoke("evaluate", folder / "missing.npz", "--metrics", "ecee"), "no metric 'ecee'")


# ---- compare ----------------------------------------------------------------------------------------------------


def test_compare_json(folder: Path) -> None:
    found = document("compare", folder / "a.npz", folder / "b.npz", "--resamples", "200")
    assert set(found) == {"n", "a", "b", "resamples", "metrics"}
    assert (found["n"], found["resamples"]) == (400, 200)
    assert (found["a"], found["b"]) == (str(folder / "a.npz"), str(folder / "b.npz"))
    assert set(found["metrics"]) == set(DEFAULT)
    for told in found["metrics"].values():
        assert set(told) == {"canonical", "a", "b", "difference", "ci", "p"}
        assert told["difference"] == told["b"] - told["a"]
        assert told["ci"][0] <= told["difference"] <= told["ci"][1] or told["p"] < 1
    ece = found["metrics"]["ece(bins=15)"]
    assert ece["difference"] < 0  # b is a divided by the temperature that it lacks
    assert ece["ci"][1] < 0
    assert ece["p"] == 1 / 201
    assert found["metrics"]["error"]["difference"] == 0


def test_compare_in_words(folder: Path) -> None:
    done = invoke(
        "compare", folder / "a.npz", folder / "b.npz", "--metrics", "ece,error,auroc", "--resamples", "200"
    )
    assert done.exit_code == 0
    assert done.stderr == ""
    assert "400 rows, paired" in done.stdout
    assert "B is better in ece (p < 0.05 each)" in done.stdout
    turned = invoke("compare", folder / "b.npz", folder / "a.npz", "--metrics", "ece", "--resamples", "200")
    assert "B is worse in ece" in turned.stdout
    same = invoke("compare", folder / "a.npz", folder / "a.npz", "--metrics", "ece", "--resamples", "100")
    assert "no difference to be seen" in same.stdout


# ---- list -------------------------------------------------------------------------------------------------------


def test_list_json() -> None:
    found = document("list", "metrics")
    assert [each["name"] for each in found] == names("metrics")
    for each in found:
        assert {"name", "summary", "parameters"} <= set(each)
        assert each["summary"].endswith(".")
        assert all({"name", "type", "default"} <= set(p) for p in each["parameters"])
    ece = next(each for each in found if each["name"] == "ece")
    assert ece["canonical"] == "ece(bins=15)"
    assert [(p["name"], p["type"], p["default"]) for p in ece["parameters"]] == [("bins", "int", 15)]
    everything = document("list")
    assert {each["kind"] for each in everything} >= {"metrics", "datasets"}


def test_list_in_words() -> None:
    done = invoke("list", "metrics")
    assert done.exit_code == 0
    for name in names("metrics"):
        assert re.search(rf"^{name}\b", done.stdout, re.MULTILINE)
    assert invoke("list", "models").exit_code == 0  # a kind without pieces yet is no mistake


# ---- as a process -----------------------------------------------------------------------------------------------


def run(*args: object, **env: str) -> subprocess.CompletedProcess[bytes]:
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "PYTHONWARNINGS")}
    return subprocess.run(
        [sys.executable, "-m", "calibrant", *map(str, args)],
        capture_output=True,
        check=False,
        env={**clean, **env},
    )


def test_a_pipe_gets_plain_text_and_a_script_gets_codes(folder: Path) -> None:
    done = run("evaluate", folder / "a.npz", "--metrics", "ece,nll", "--fail-if", "ece>0.02", COLUMNS="100")
    assert done.returncode == 1
    assert b"\x1b" not in done.stdout + done.stderr  # no colours, and no progress bar, where nobody looks
    assert "●" in done.stdout.decode()
    assert done.stderr.decode().startswith("calibrant: check failed: ")
    refused = run("evaluate", folder / "missing.npz")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"Traceback" not in refused.stderr
    piped = run("evaluate", folder / "a.npz", "--json", "--metrics", "ece", PYTHONWARNINGS="error")
    assert (piped.returncode, piped.stderr) == (0, b"")
    assert json.loads(piped.stdout)["metrics"]["ece"]["value"] > 0.02


def test_narrow_and_odd_terminals(folder: Path) -> None:
    done = run("evaluate", folder / "a.npz", COLUMNS="80", TERM="dumb", NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    for spec in DEFAULT:
        assert re.search(rf"^{re.escape(spec)} .*\d", done.stdout.decode(), re.MULTILINE)  # nothing is cut
    ascii_only = run("evaluate", folder / "a.npz", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert b"Traceback" not in ascii_only.stderr
    assert ascii_only.returncode == 0


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("env", "colours"), [({"TERM": "xterm-256color"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)]
)
def test_colours_only_where_they_are_wanted(env: dict[str, str], colours: bool, folder: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "calibrant", "evaluate", str(folder / "short.npz"), "--metrics", "ece"]
    with subprocess.Popen(command, stdout=follower, stderr=subprocess.PIPE, env={**clean, **env}) as process:
        os.close(follower)
        out = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # the other end is closed: Linux says so with an error
                break
            if not part:
                break
            out += part
    os.close(leader)
    assert process.returncode == 0
    assert (re.search(rb"\x1b\[[0-9;]*3[0-9]", out) is not None) == colours  # a foreground colour


def test_a_reader_that_stops_early_is_no_error(folder: Path) -> None:
    script = f"{sys.executable} -m calibrant evaluate {folder / 'a.npz'} {folder / 'b.npz'} --metrics ece | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "a.npz" in done.stdout
