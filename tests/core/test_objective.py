"""Objectives: specs, sums in Python, equality, and errors that offer the nearest name."""

import pickle

import pytest
import torch

import calibrant as cal
from calibrant.core.errors import CalibrantError
from calibrant.core.objective import Objective, objective
from calibrant.core.spec import parse
from calibrant.losses import CE, Entropy, Focal, LpNorm

LOGITS = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ce", "ce"),
        ("focal", "focal(gamma=1, detach=False)"),
        (" ce+0.01 * lp_norm ( p=1 ) ", "ce + 0.01*lp_norm(p=1)"),
        ("ce - 0.1*entropy", 'ce - 0.1*entropy(over="sum")'),
        ("ce - 0.001*lp_norm(p=1)", "ce - 0.001*lp_norm(p=1)"),
        ("ce + -0.5*lp_norm", "ce - 0.5*lp_norm(p=1)"),
        ("-ce", "-ce"),
        ("2*ce - -1*brier", "2*ce + brier"),
        ("label_smoothing(epsilon=-0.01)", 'label_smoothing(epsilon=-0.01, over="all")'),
        ("0.5*(ce)", "0.5*ce"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    built = objective(text)
    assert str(built) == canonical
    assert objective(canonical) == built
    assert hash(objective(canonical)) == hash(built)


def test_sums_in_python_are_the_same_objects() -> None:
    built = CE() + 0.01 * LpNorm(p=1) - 2 * Entropy() * 0.05
    assert built == objective("ce + 0.01*lp_norm(p=1) - 0.1*entropy")
    assert -(CE() - LpNorm(2)) == objective("-ce + lp_norm(p=2)")
    assert str(Focal(3)) == "focal(gamma=3, detach=False)"
    for wrong in (lambda: CE() + 1, lambda: CE() * True, lambda: CE() - 2, lambda: "2" * CE()):
        with pytest.raises(TypeError):
            wrong()


def test_the_names_that_users_type() -> None:
    assert cal.loss("focal(gamma=3)") == objective("focal(gamma=3)")
    assert isinstance(cal.loss("ce"), cal.Objective)
    assert cal.loss("focal(gamma=3)")(LOGITS, LABELS) == cal.losses.Focal(gamma=3)(LOGITS, LABELS)


def test_order_and_factors_distinguish() -> None:
    assert objective("ce + brier") != objective("brier + ce")
    assert objective("ce") != objective("2*ce")
    assert len({objective("ce"), objective("1*ce"), objective("focal(gamma=0)")}) == 2


def test_values_are_weighted_sums() -> None:
    value = objective("2*ce - 0.5*lp_norm(p=2)")(LOGITS, LABELS)
    torch.testing.assert_close(value, 2 * CE()(LOGITS, LABELS) - 0.5 * LpNorm(2)(LOGITS, LABELS))
    rows = objective("2*ce - 0.5*lp_norm(p=2)").per_sample(LOGITS, LABELS)
    assert rows.shape == (2,)
    torch.testing.assert_close(rows.mean(), value)


def test_a_factor_of_0_leaves_a_term_out() -> None:
    masked = LOGITS.clone()
    masked[:, 1] = -torch.inf
    assert objective("ce + 0*lp_norm(p=1)")(masked, LABELS).isfinite()  # the norm alone is infinite
    assert float(objective("0*ce")(LOGITS, LABELS)) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("focl", "no loss, penalty or surrogate 'focl'; did you mean 'focal'?"),
        ("ce + 0.1*entrpy", "did you mean 'entropy'?"),
        ("ce + 0.1*lp_nrm", "did you mean 'lp_norm'?"),
        ("focal(gama=2)", "focal has no argument 'gama'; did you mean 'gamma'?"),
        (
            "focal(gamma=-1)",
            "gamma must be finite and at least 0, not -1; the opposite sign is inverse_focal",
        ),
        ("label_smoothing(epsilon=2)", "epsilon must lie above -1 and up to 1, not 2"),
        ("lp_norm(p=0.5)", "p must be at least 1 and finite, not 0.5"),
        ("logit_norm(temperature=0)", "temperature must lie between"),
        ("mbls(margin=-1)", "margin must be at least 0"),
        ("ce(weight=3)", "ce(weight=...) must be numbers such as (1, 2) or None, not 3"),
        ("ce(weight=(1, 'a'))", "must hold numbers only"),
        ("", "the spec is empty"),
    ],
)
def test_errors_name_the_remedy(text: str, message: str) -> None:
    with pytest.raises(CalibrantError) as caught:
        objective(text)
    assert message in str(caught.value)


def test_an_objective_needs_terms_and_finite_factors() -> None:
    with pytest.raises(CalibrantError, match="at least one term"):
        Objective(())
    with pytest.raises(CalibrantError, match="must be finite"):
        Objective(((float("nan"), CE()),))


def test_numbers_in_brackets_are_part_of_the_grammar() -> None:
    assert str(parse("ce(weight=[1, 2.50, -3e-1])")) == "ce(weight=(1, 2.5, -0.3))"
    assert str(parse("ce(weight=(4,))")) == "ce(weight=(4,))"
    assert parse(str(parse("ce(weight=(1, 2))"))) == parse("ce(weight=(1,2))")
    assert objective("ce(weight=(1, 2))").terms[0][1] == CE(weight=(1.0, 2.0))


def test_objectives_travel_between_processes() -> None:
    built = objective("focal(gamma=2) - 0.1*entropy")
    assert pickle.loads(pickle.dumps(built)) == built  # noqa: S301, TID251  what a pool of processes does
