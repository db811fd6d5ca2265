"""A metric is one file: written into a copy of the package, it is seen by everything, with no other edit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

ZZZ = '''"""A metric that exists only in this test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrant.core.binning import Float64
from calibrant.core.contracts import Better
from calibrant.core.registry import register
from calibrant.metrics.metric import Metric
from calibrant.metrics.proper import weighted_mean
from calibrant.metrics.scores import Scores


@register("metrics", "zzz")
@dataclass(frozen=True)
class Zzz(Metric):
    r"""The mean power of the distance between confidence and correctness.

    $\\\\frac{1}{N} \\\\sum_i |c_i - a_i|^p$. With p = 1 it is `ace` with a bin for each row.
    """

    power: float = 3.0
    better: ClassVar[Better] = "lower"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    population: ClassVar[str] = "the expected power of the distance of a new row"
    no_interval: ClassVar[str | None] = "a metric of a test has no time to measure its coverage"

    def value(self, scores: Scores) -> float:
        distance: Float64 = np.abs(scores.confidence64 - scores.correct)
        return weighted_mean(distance**self.power, scores)
'''


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        ROOT / "src" / "calibrant", where / "calibrant", ignore=shutil.ignore_patterns("__pycache__")
    )
    (where / "calibrant" / "metrics" / "zzz.py").write_text(ZZZ, encoding="utf-8")
    return where


def python(copy: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, *args],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(copy)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_copy_is_what_runs(copy: Path) -> None:
    assert python(copy, "-c", "import calibrant; print(calibrant.__file__)").startswith(str(copy))


def test_it_is_listed(copy: Path) -> None:
    found = {
        each["name"]: each
        for each in json.loads(python(copy, "-m", "calibrant", "list", "metrics", "--json"))
    }
    assert found["zzz"]["canonical"] == "zzz(power=3)"
    assert found["zzz"]["summary"] == "The mean power of the distance between confidence and correctness."
    assert [p["name"] for p in found["zzz"]["parameters"]] == ["power"]
    assert "zzz(power=3)" in python(copy, "-m", "calibrant", "list", "metrics")


def test_it_is_described_for_documentation_and_tests(copy: Path) -> None:
    code = "from calibrant.core.registry import describe; print(*[e.name for e in describe('metrics')])"
    names = python(copy, "-c", code).split()
    assert names[-1] == "zzz"
    assert "ece" in names
    page = python(copy, "-c", "from docs import hooks; print(hooks.registry('metrics'))")
    section = page[page.index("## `zzz`") :]
    assert "The mean power of the distance between confidence and correctness." in section
    assert "| `power` | float | `3.0` |" in section


def test_it_is_evaluated_and_compared(copy: Path, tmp_path: Path, draw) -> None:
    logits, labels = draw(200, 3, seed=80)
    file, other = tmp_path / "p.npz", tmp_path / "q.npz"
    np.savez(file, logits=logits, labels=labels)
    np.savez(other, logits=logits / 2, labels=labels)
    e = np.exp(logits - logits.max(1, keepdims=True))
    gap = np.abs(e.max(1) / e.sum(1) - (logits.argmax(1) == labels))
    evaluate = ["-m", "calibrant", "evaluate", str(file), "--json", "--metrics"]
    told = json.loads(python(copy, *evaluate, "zzz,zzz(power=1)"))["metrics"]
    assert told["zzz"]["canonical"] == "zzz(power=3)"
    assert told["zzz"]["value"] == pytest.approx((gap**3).mean(), abs=1e-9)
    assert told["zzz(power=1)"]["value"] == pytest.approx(gap.mean(), abs=1e-9)
    found = json.loads(
        python(copy, "-m", "calibrant", "compare", str(file), str(other), "--json", "--metrics", "zzz")
    )
    assert found["metrics"]["zzz"]["p"] > 0


def test_it_passes_the_contract(copy: Path) -> None:
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract/test_metrics.py", "-k", "zzz"]
    last = python(copy, *command).strip().splitlines()[-1]
    assert int(last.split(" passed")[0].split()[-1]) > 30
    assert "failed" not in last
