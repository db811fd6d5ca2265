"""Chains: each step is fitted to what the steps before it give, and the whole is one calibrator."""

import pytest
import torch

import calibrant as cal
from calibrant.core.calibration import Calibrator, Top
from calibrant.core.chain import Chain
from calibrant.core.errors import CalibrantError, SpecError


def test_a_chain_is_its_steps_one_by_one(draw) -> None:
    logits, labels = draw(400, 4, seed=20)
    first = cal.calibrator("temperature").fit(logits, labels)
    second = cal.calibrator("histogram(bins=7)").fit(first(logits), labels)
    chain = cal.calibrator("temperature > histogram(bins=7)").fit(logits, labels)
    rows, _ = draw(100, 4, seed=21)
    wanted, found = second(first(rows)), chain(rows)
    assert isinstance(wanted, Top)
    assert isinstance(found, Top)
    assert torch.equal(found.confidence, wanted.confidence)
    assert torch.equal(found.predicted, wanted.predicted)
    assert chain.calibrator.scope == "top"
    assert set(chain.state) == {
        *(f"0.{name}" for name in first.state),
        *(f"1.{name}" for name in second.state),
    }


def test_identity_in_a_chain_changes_nothing(draw) -> None:
    logits, labels = draw(300, 3, seed=22)
    alone = cal.calibrator("temperature").fit(logits, labels)(logits)
    for spec in ("identity > temperature", "temperature > identity", "identity > temperature > identity"):
        assert torch.equal(cal.calibrator(spec).fit(logits, labels)(logits), alone)


def test_a_second_temperature_finds_nothing_to_do(draw) -> None:
    chain = cal.calibrator("temperature > temperature").fit(*draw(500, 5, seed=23))
    # the first is within 1e-6 of the best ln T, and so is the second of 0
    assert abs(chain.state["1.temperature"].log()) < 2e-6


def test_eleven_steps_keep_their_states_apart(draw) -> None:
    logits, labels = draw(200, 3, seed=24)
    made = cal.calibrator(" > ".join(["identity"] * 10 + ["temperature", "temperature"])).fit(logits, labels)
    assert set(made.state) == {"10.temperature", "11.temperature"}
    alone = cal.calibrator("temperature").fit(logits, labels)
    assert torch.allclose(made(logits), alone(logits), rtol=1e-5)


def test_the_canonical_form_has_every_parameter() -> None:
    made = cal.calibrator(" temperature>histogram( bins = 5 ) ")
    assert str(made) == f"{cal.calibrator('temperature')} > {cal.calibrator('histogram(bins=5)')}"
    assert cal.calibrator(str(made)) == made
    nested = Chain((cal.calibrator("temperature > identity"), cal.calibrator("histogram(bins=5)")))
    assert nested == cal.calibrator("temperature > identity > histogram(bins=5)")
    assert nested.keeps_argmax


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("histogram(bins=5) > temperature", "changes the confidence of the top label alone; put that last"),
        ("temperature > histogram > histogram", "put that last"),
        ("temperature >", "nothing on one side of '>'"),
        ("> temperature", "nothing on one side of '>'"),
        ("temperature > > identity", "nothing on one side of '>'"),
        ("temperature >> identity", "nothing on one side of '>'"),
        ("temperature >= identity", "cannot read"),
        ("temperature > hystogram", "did you mean 'histogram'"),
        (" > ".join(["identity"] * 21), "is too long"),
        ("", "the spec is empty"),
    ],
)
def test_a_chain_that_is_none_is_refused(spec: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        cal.calibrator(spec)


def test_one_calibrator_is_no_chain() -> None:
    with pytest.raises(CalibrantError, match="at least two"):
        Chain((cal.calibrator("temperature"),))
    assert not isinstance(cal.calibrator("temperature"), Chain)


def test_a_mark_inside_quotes_is_no_step() -> None:
    made = cal.calibrator('auto(candidates="temperature, temperature > identity")')
    assert not isinstance(made, Chain)
    assert cal.calibrator(str(made)) == made


def test_a_choice_in_a_chain_is_made_by_the_fit(draw) -> None:
    logits, labels = draw(600, 4, seed=25, sharpen=3)
    chain = cal.calibrator('auto(candidates="temperature") > histogram(bins=5)')
    assert isinstance(chain, Calibrator)
    assert not chain.settled
    with pytest.raises(CalibrantError, match="has no state before"):
        chain.shapes(4)
    made = chain.fit(logits, labels)
    assert str(made.calibrator) == str(cal.calibrator("temperature > histogram(bins=5)"))
    assert len(made.notes) == 4
