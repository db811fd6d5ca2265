"""An estimate adds up: linear in epochs and seeds, one measurement for runs of a kind."""

from pathlib import Path

import pytest
import torch
from tests.study.conftest import TOY

from calibrant.core.errors import CalibrantError
from calibrant.study import estimate as room
from calibrant.study import grid, read
from calibrant.study.estimate import Pace, estimate


def test_it_is_linear_and_measures_each_kind_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pace(run: object, *_: object) -> Pace:
        asked.append(run)
        return Pace(trained=0.001, predicted=0.0001, rows=1000, shown=500)

    monkeypatch.setattr(room, "_pace", pace)
    planned = grid(read(TOY, "toy"), {"seeds": "5"})
    found = estimate(point.run for point in planned.points)
    assert len(asked) == 2  # two losses, whatever the seed
    assert found == pytest.approx(2 * 5 * 3 * (1000 * 0.001 + 500 * 0.0001))
    longer = grid(read(TOY, "toy"), {"seeds": "5", "epochs": "6"})
    assert estimate(point.run for point in longer.points) == pytest.approx(2 * found)


def test_a_measurement_leaves_torch_as_it_was(tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    run = grid(read(TOY, "toy")).points[0].run
    pace = room._pace(run, None, "cpu")
    assert (pace.rows, pace.shown) == (256, 232)  # 8:1:1 of 320 is 256, 32, 32; test has 200
    assert pace.trained > 0
    assert pace.predicted > 0
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    text = TOY.replace('"synthetic(classes=3, train=320, test=200)"', '"cifar10"')
    with pytest.raises(CalibrantError, match="fetch cifar10"):
        estimate([grid(read(text, "toy")).points[0].run], tmp_path)
