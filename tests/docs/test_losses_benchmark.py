"""The speed of losses: one machine measures, another writes the table, and both tell the same."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = [sys.executable, str(ROOT / "benchmarks" / "losses.py")]


def told(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SCRIPT, *options], capture_output=True, text=True, check=False, cwd=ROOT)


def test_kept_numbers_make_the_same_table(tmp_path: Path) -> None:
    kept = tmp_path / "speed.json"
    run = ["--only", "ce", "mmce", "--sizes", "8x3", "1024x1000", "--rounds", "1", "--budget-ms", "0.1"]
    measured = told(*run, "--json", str(kept))
    assert measured.returncode == 0, measured.stderr
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert found["table"] == "losses-cpu"
    assert found["sizes"] == [[8, 3], [1024, 1000]]
    assert {name: len(row) for name, row in found["ratios"].items()} == {"ce": 2, "mmce": 2}
    assert min(found["ratios"]["mmce"]) > 0
    again = told("--from", str(kept))
    assert again.stdout == measured.stdout
    assert f"| `mmce` | {found['ratios']['mmce'][0]:.2f} |" in again.stdout
    assert again.stdout.startswith("| piece | 8 x 3 | 1,024 x 1,000 |")


def test_the_limit_is_for_losses_of_rows(tmp_path: Path) -> None:
    kept = tmp_path / "speed.json"
    numbers = {"table": "losses-cuda-graph", "machine": "a GPU", "torch": "2", "sizes": [[1024, 1000]]}
    ratios = {"focal": [2.6], "ce": [1.0], "cpc": [900.0]}
    kept.write_text(json.dumps({**numbers, "cross_entropy_us": [15.0], "ratios": ratios}), encoding="utf-8")
    assert told("--from", str(kept), "--limit", "2.7").returncode == 0
    over = told("--from", str(kept), "--limit", "2.5")
    assert over.returncode == 1
    assert "{'focal': 2.6}" in over.stderr
