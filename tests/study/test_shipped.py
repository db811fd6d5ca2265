"""Every shipped study runs at its tiny scale, and has an answer to each of its claims."""

from pathlib import Path

import pytest
from tests.study.conftest import Inline

from calibrant.core.samples import Importable
from calibrant.study import grid, load, run, shipped


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped())
def test_every_study_runs_at_its_tiny_scale(name: str, tmp_path: Path) -> None:
    outcome = run(name, tmp_path, executor=Inline(), settings={"scale": "tiny", "seeds": "2"})
    assert outcome.failures == []
    assert outcome.document["as_published"] is False
    for claim in outcome.document["claims"]:
        assert claim["verdict"] in ("holds", "fails", "undecided")
        assert all(each["n"] == 2 for each in claim["comparisons"])
    assert all(row["n"] == 2 for row in outcome.document["published"])
    again = run(name, tmp_path, executor=Inline(), settings={"scale": "tiny", "seeds": "2"})
    assert again.executed == 0


@pytest.mark.parametrize("name", shipped())
def test_no_study_needs_data_at_its_tiny_scale(name: str) -> None:
    planned = grid(load(name), {"scale": "tiny"})
    assert not [p.label for p in planned.points if isinstance(p.run.dataset, Importable)]
