"""`auto`: what it chooses, and that it chooses by rows that were not fitted to."""

import math

import numpy as np
import pytest
import torch

import calibrant as cal
from calibrant.calibrators.auto import _held_out
from calibrant.core.errors import CalibrantError, SpecError
from calibrant.core.rows import fold_of

ONE = 'auto(candidates="temperature")'


def test_held_out_losses_are_those_of_a_slow_loop(draw) -> None:
    logits, labels = (torch.from_numpy(a) for a in draw(60, 3, seed=30))
    fold = fold_of(logits, labels, 4, 0)
    found = _held_out(cal.calibrator("temperature"), logits, labels, fold, 4)
    for row in range(len(labels)):
        rest = fold != fold[row]
        temperature = float(
            cal.calibrator("temperature").fit(logits[rest], labels[rest]).state["temperature"]
        )
        z = [float(value) / temperature for value in logits[row]]
        wanted = math.log(sum(math.exp(value) for value in z)) - z[int(labels[row])]
        assert found[row] == pytest.approx(wanted, abs=1e-12)


def test_folds_are_equal_and_follow_the_row_not_its_place(draw) -> None:
    logits, labels = (torch.from_numpy(a) for a in draw(101, 4, seed=31))
    fold = fold_of(logits, labels, 5, 0)
    assert sorted(np.bincount(fold.numpy())) == [20, 20, 20, 20, 21]
    order = torch.randperm(101, generator=torch.Generator().manual_seed(3))
    assert torch.equal(fold_of(logits[order], labels[order], 5, 0), fold[order])
    assert not torch.equal(fold_of(logits, labels, 5, 1), fold)
    assert torch.equal(fold_of(logits.float(), labels, 5, 0), fold_of(logits.float().double(), labels, 5, 0))


def test_one_candidate_is_taken_where_it_helps(draw) -> None:
    made = cal.calibrator(ONE).fit(*draw(1000, 5, seed=32, sharpen=2))
    assert made.calibrator == cal.calibrator("temperature")
    assert made.state.keys() == {"temperature"}


def test_identity_is_taken_where_no_gain_can_be_seen(draw) -> None:
    chosen = [
        str(cal.calibrator(ONE).fit(*draw(500, 3, seed=s, sharpen=1)).calibrator) for s in range(40, 60)
    ]
    # a held-out gain of nothing is above its own standard error in 16 of 100 cases at most, and mostly below 0
    assert chosen.count("identity") >= 16


def test_the_simpler_is_taken_where_both_are_as_good(draw) -> None:
    logits, labels = draw(800, 4, seed=33, sharpen=2)
    for candidates, wanted in (
        ("temperature, identity > temperature", "temperature"),
        ("identity > temperature, temperature", "identity > temperature"),
    ):
        made = cal.calibrator(f'auto(candidates="{candidates}")').fit(logits, labels)
        assert made.calibrator == cal.calibrator(wanted)


def test_the_better_is_taken_where_it_is_worth_it(draw) -> None:
    logits, labels = draw(3000, 3, seed=34, sharpen=3)
    # T = 1.5 at most: far from what these rows ask for
    made = cal.calibrator(
        'auto(candidates="temperature(objective=\\"ece\\", highest=1.5), temperature")'
    ).fit(logits, labels)
    assert made.calibrator == cal.calibrator("temperature")


def test_it_says_why_in_four_lines(draw) -> None:
    made = cal.calibrator('auto(candidates="temperature, identity > temperature")').fit(
        *draw(300, 3, seed=35, sharpen=2)
    )
    first, second, third, last = made.notes
    assert "held-out log loss in 5 folds of 300 rows: identity " in first
    assert "identity > temperature " in first
    assert "has the lowest" in second
    assert "the simplest within one standard error of it is temperature" in third
    assert "so temperature is taken" in last
    assert all(note.startswith("auto: ") for note in made.notes)


def test_its_choice_and_its_reasons_are_saved(draw, tmp_path) -> None:
    made = cal.calibrator(ONE).fit(*draw(300, 3, seed=36, sharpen=2))
    made.save(tmp_path / "cal")
    again = cal.load_calibrator(tmp_path / "cal")
    assert again.notes == made.notes
    assert again.calibrator == cal.calibrator("temperature")


def test_few_rows_are_not_chosen_by(draw) -> None:
    made = cal.calibrator(ONE).fit(*draw(9, 3, seed=37))
    assert str(made.calibrator) == "identity"
    assert made.notes == ("auto: 9 rows are too few for 5 folds, so identity is taken",)
    assert len(cal.calibrator(ONE).fit(*draw(10, 3, seed=37)).notes) == 4


def test_a_candidate_that_fails_is_named(draw, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object, logits: object, labels: object) -> None:
        raise CalibrantError("these rows are not to its taste")

    logits, labels = draw(300, 3, seed=38, sharpen=2)
    monkeypatch.setattr(cal.calibrators.Temperature, "learn", fails)
    made = cal.calibrator('auto(candidates="temperature, identity")').fit(logits, labels)
    assert "(temperature is left out: these rows are not to its taste)" in made.notes[0]
    assert len(made.notes) == 4
    alone = cal.calibrator(ONE).fit(logits, labels)
    assert "left out" in alone.notes[0]
    assert alone.notes[-1] == "auto: identity is taken"
    assert len(alone.notes) == 4


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ('auto(candidates="")', "names no candidate"),
        ('auto(candidates="temperatur")', "did you mean 'temperature'"),
        ('auto(candidates="histogram(bins=5)")', "gives the top label alone"),
        ('auto(candidates="temperature > histogram")', "gives the top label alone"),
        ('auto(candidates="auto")', "cannot choose itself"),
        ("auto(folds=1)", "needs folds >= 2"),
        ("auto(seed=-1)", "seed >= 0"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(spec: str, told: str) -> None:
    with pytest.raises((SpecError, CalibrantError), match=told):
        cal.calibrator(spec)
