"""What counts as the same rows, and what does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calibrant as cal
from calibrant import Predictions, TopLabel
from calibrant.calibrators.calibrate import apply_fitted, calibrate, learn
from calibrant.core.errors import InputError
from calibrant.core.overlap import overlap
from calibrant.core.rows import row_keys


def made(draw: Any, n: int = 200, k: int = 4, *, seed: int, **more: Any) -> Predictions:
    logits, labels = draw(n, k, seed=seed)
    return Predictions(logits.astype(np.float32), labels, **more)


def rows(predictions: Predictions, where: slice, **more: Any) -> Predictions:
    return Predictions(predictions.logits[where], predictions.labels[where], **more)


def test_other_rows_are_no_overlap(draw) -> None:
    assert overlap(made(draw, seed=1), made(draw, seed=2)) is None
    assert (
        overlap(made(draw, seed=1, meta={"split": "val"}), made(draw, seed=2, meta={"split": "test"})) is None
    )
    assert overlap(made(draw, seed=1, k=3), made(draw, seed=2, k=5)) is None


def test_the_same_file_by_any_name(draw, tmp_path: Path) -> None:
    made(draw, seed=1).save(tmp_path / "a.npz")
    (tmp_path / "b.npz").symlink_to(tmp_path / "a.npz")
    one, two = Predictions.load(tmp_path / "a.npz"), Predictions.load(tmp_path / "b.npz")
    assert overlap(one, two) == "they are the same file"
    assert overlap(one, one) == "they are the same file"
    one.save(tmp_path / "c.npz")
    assert overlap(one, Predictions.load(tmp_path / "c.npz")) == "they hold the same predictions"


def test_the_same_split(draw) -> None:
    val = {"split": "val", "dataset": "a"}
    one = made(draw, seed=1, meta=val)
    assert overlap(one, made(draw, seed=2, meta=val)) == "both are the split 'val'"
    assert overlap(one, made(draw, seed=2, meta={"split": "val"})) == "both are the split 'val'"
    assert overlap(one, made(draw, seed=2, meta={**val, "dataset": "b"})) is None
    assert overlap(one, made(draw, seed=2, meta={**val, "split": "test"})) is None


def test_ids_decide_where_both_have_them(draw) -> None:
    one = made(draw, seed=1, ids=np.arange(200))
    assert overlap(one, made(draw, seed=2, ids=np.arange(199, 399))) == "they have 1 id in common"
    assert (
        overlap(one, made(draw, seed=2, ids=np.arange(190, 390).astype(str))) == "they have 10 ids in common"
    )
    assert overlap(one, made(draw, seed=2, ids=np.arange(200, 400))) is None
    assert overlap(one, replace(one, ids=np.arange(500, 700))) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_decide_without(dtype: torch.dtype, draw) -> None:
    whole = made(draw, n=400, seed=1)
    first, second = rows(whole, slice(0, 250)), rows(whole, slice(200, 400))
    other = replace(second, logits=second.logits.to(dtype))
    assert overlap(first, other) == "50 rows of the second are in the first"
    assert overlap(replace(first, ids=np.arange(250)), other) == "50 rows of the second are in the first"
    assert overlap(first, rows(whole, slice(249, 400))) == "1 row of the second is in the first"
    assert overlap(first, rows(whole, slice(250, 400))) is None
    changed = replace(other, labels=(other.labels + 1) % 4)
    assert overlap(first, changed) is None


def test_a_text_file_of_the_same_rows_is_seen(draw, tmp_path: Path) -> None:
    one = made(draw, seed=1)
    for name in ("a.csv", "a.npz"):
        one.save(tmp_path / name)
    found = overlap(Predictions.load(tmp_path / "a.csv"), Predictions.load(tmp_path / "a.npz"))
    assert found is not None
    assert "200 rows" in found


def test_coarse_rows_that_repeat_prove_nothing() -> None:
    """Probabilities of two digits and two classes: a hundred different rows, and every one in both files."""
    rng = np.random.default_rng(0)

    def coarse(n: int) -> Predictions:
        one = rng.integers(1, 100, n) / 100
        return Predictions.from_binary(one, rng.integers(0, 2, n))

    assert overlap(coarse(2000), coarse(2000)) is None


def test_keys_tell_rows_apart_and_not_their_places(draw) -> None:
    one = made(draw, n=3000, k=7, seed=3)
    keys = row_keys(one.logits, one.labels)
    assert len(set(keys.tolist())) == 3000
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(row_keys(one.logits[order], one.labels[order]), keys[order])
    zero = torch.zeros(1, 3)
    assert row_keys(zero, torch.tensor([1])) == row_keys(-zero, torch.tensor([1]))
    assert row_keys(zero, torch.tensor([1])) != row_keys(zero, torch.tensor([2]))
    assert not torch.equal(row_keys(one.logits, one.labels, seed=1), keys)
    assert torch.equal(row_keys(one.logits.double(), one.labels), keys)
    grid = torch.cartesian_prod(*[torch.arange(8.0)] * 4)  # whole numbers have few bits that differ
    assert len(set(row_keys(grid, torch.zeros(len(grid), dtype=torch.int64)).tolist())) == len(grid)


def test_calibrate_refuses_an_overlap_and_marks_what_is_allowed(draw) -> None:
    whole = made(draw, n=400, seed=1)
    first, second = rows(whole, slice(0, 250)), rows(whole, slice(200, 400))
    with pytest.raises(InputError, match=r"50 rows of the second are in the first; use another split"):
        calibrate(first, second, "temperature")
    found = calibrate(first, second, "temperature", allow_overlap=True)
    assert found.oracle is not None
    assert found.predictions.meta["oracle"] is True
    evaluation = cal.evaluate(found.predictions, ["nll"])
    assert evaluation.oracle
    assert evaluation.to_json()["oracle"] is True
    assert evaluation.notes[0].startswith("oracle: ")
    honest = calibrate(first, made(draw, seed=9), "temperature", allow_overlap=True)
    assert "oracle" not in honest.predictions.meta
    assert "oracle" not in cal.evaluate(honest.predictions, ["nll"]).to_json()


def test_a_calibrator_remembers_what_it_was_fitted_to(draw) -> None:
    val = made(draw, seed=1, meta={"split": "val", "run": "r1"})
    fitted = learn(val, "temperature")
    about = fitted.provenance["fit"]
    assert about["sha256"] == val.sha256
    assert (about["split"], about["run"], about["n"]) == ("val", "r1", 200)
    for other in (val, made(draw, seed=2, meta={"split": "val"})):
        with pytest.raises(InputError, match="the rows that this calibrator was fitted to"):
            apply_fitted(fitted, other)
        assert apply_fitted(fitted, other, allow_overlap=True).predictions.meta["oracle"] is True
    step = apply_fitted(fitted, made(draw, seed=2)).predictions.meta["calibration"][0]
    assert step["method"] == str(fitted.calibrator)
    assert step["fit"]["split"] == "val"


def test_what_a_calibrator_cannot_read_is_refused(draw) -> None:
    val, test = made(draw, seed=1), made(draw, seed=2)
    top = calibrate(val, test, "histogram(bins=5)").predictions
    other = made(draw, seed=3)
    pairs = TopLabel(np.full(20, 0.5), np.arange(20) % 2)
    for method in ("temperature", "histogram(bins=5)"):
        for one, two in ((top, other), (other, top)):
            with pytest.raises(InputError, match="no calibrator can follow one"):
                calibrate(one, two, method)
        for one, two in ((pairs, other), (other, pairs)):
            with pytest.raises(InputError, match="needs logits or probabilities"):
                calibrate(one, two, method)
    with pytest.raises(InputError, match="it has 3 classes, and the calibrator is for 4"):
        calibrate(val, made(draw, k=3, seed=2), "temperature")


def test_calibrated_and_raw_predictions_are_not_mixed(draw) -> None:
    a, b, c = (made(draw, seed=s) for s in (1, 2, 3))
    after = calibrate(a, b, "temperature").predictions
    with pytest.raises(InputError, match=r"it went through temperature\(.*calibrate both alike"):
        calibrate(c, after, "temperature")
    twice = calibrate(calibrate(a, c, "temperature").predictions, after, "temperature").predictions
    assert len(twice.meta["calibration"]) == 2


def test_probabilities_are_calibrated_with_their_logits(draw) -> None:
    logits, labels = draw(300, 3, seed=5)
    probs = torch.from_numpy(logits).softmax(1)
    given = Predictions.from_probs(probs, labels)
    found = calibrate(made(draw, k=3, seed=6), given, "temperature").predictions
    assert found.probs is not None
    assert torch.allclose(found.probs, found.logits.softmax(1), atol=1e-12)
    assert not torch.allclose(found.probs, probs, atol=1e-3)
    sure = np.array([[1, 0.0], [0.5, 0.5], [0.25, 0.75]])
    impossible = Predictions.from_probs(sure, [1, 0, 1])  # the true class of row 0 has probability 0
    after = calibrate(made(draw, k=2, seed=7), impossible, "temperature").predictions
    assert np.isinf(cal.evaluate(after, ["nll"])["nll"].value)
    with pytest.raises(InputError, match="row 0 masks the true class"):
        calibrate(impossible, made(draw, k=2, seed=7), "temperature")


def test_a_top_label_calibrator_leaves_the_logits(draw) -> None:
    val, test = made(draw, seed=1), made(draw, seed=2)
    found = calibrate(val, test, "temperature > histogram(bins=5)").predictions
    assert torch.equal(found.logits, test.logits)
    assert torch.equal(found.predicted, test.logits.argmax(1))
    evaluation = cal.evaluate(found)
    assert evaluation["error"].value == cal.evaluate(test)["error"].value
    assert evaluation["ece(bins=15)"].value != cal.evaluate(test)["ece(bins=15)"].value
    for spec in ("nll", "brier", "classwise_ece(bins=15)"):
        assert (
            evaluation[spec].reason
            == "needs the full probability vector, and these are of a top-label calibrator"
        )
