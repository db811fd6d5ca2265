"""What every calibrator keeps: the tests run over the registry, so that a new one is covered by its name."""

from __future__ import annotations

import typing
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import calibrant as cal
from calibrant.core.calibration import CalibrationWarning, Calibrator, Fitted, Procedure, Top, check_state
from calibrant.core.calibrator_file import sound
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.registry import Entry, Parameter, describe, parameters
from calibrant.core.spec import show_value

NOT_BY_LOG_LOSS = {
    'temperature(objective="ece")': "it minimises the calibration error, at whatever log loss",
    'ets(loss="mse")': "it minimises the squared error, as one of the two objectives of its paper",
    "scaling_binning": "one value a bin: on few rows the bins lose more than the scaler gains",
}
"""Full-scope calibrators whose log loss on the rows they were fitted to may be above identity's; with the reason."""

COSTLY = {"vector", "matrix", "dirichlet", "structured", "attended", "auto", "iop", "imax", "spline", "bbq"}
"""Those that are not tried with 1,000 classes here, since a fit takes seconds; they are tried with 40."""


@dataclass(frozen=True)
class Variant:
    """A calibrator of the registry as its defaults make it, or with one choice made otherwise."""

    name: str
    spec: str
    piece: Any


def variants(entry: Entry) -> Iterator[Variant]:
    made = entry.piece()
    yield Variant(entry.name, entry.name, made)
    for p in entry.parameters:
        for value in typing.get_args(p.type) if typing.get_origin(p.type) is typing.Literal else ():
            changed = {p.name: value, **BESIDE.get(f"{entry.name} {p.name}={value}", {})}
            if value != p.default:
                shown = ", ".join(f"{name}={show_value(each)}" for name, each in changed.items())
                yield Variant(entry.name, f"{entry.name}({shown})", replace(made, **changed))


BESIDE: dict[str, dict[str, Any]] = {
    "matrix penalty=zero": {"strength": 0.01},
    "matrix penalty=identity": {"strength": 0.01},
}
"""What a choice needs beside it."""

VARIANTS = [variant for entry in describe("calibrators") for variant in variants(entry)]
every = pytest.mark.parametrize("variant", VARIANTS, ids=[v.spec for v in VARIANTS])
full = pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if v.piece.scope == "full"], ids=lambda v: v.spec
)


def batch(n: int = 400, k: int = 4, *, seed: int = 0, sharpen: float = 1.6) -> tuple[Tensor, Tensor]:
    """Logits of a model and labels drawn from softmax(logits / sharpen): calibrated when sharpen is 1."""
    g = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return logits, (logits / sharpen).softmax(1).multinomial(1, generator=g)[:, 0]


@contextmanager
def doubts_allowed() -> Iterator[None]:
    """A fit to unusual rows may warn, but only as a calibrator does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        yield


def fit(piece: Procedure, logits: Any, labels: Any) -> Fitted:
    with doubts_allowed():
        return piece.fit(logits, labels)


@cache
def fitted(spec: str) -> Fitted:
    """A fit to generic rows that tests share and leave as it is."""
    piece = next(v.piece for v in VARIANTS if v.spec == spec)
    return fit(piece, *batch())


def numbers(found: Tensor | Top) -> Tensor:
    """Probabilities of all classes, or the confidence of the predicted one."""
    return found.confidence.double() if isinstance(found, Top) else found.double().softmax(1)


def log_loss(logits: Tensor, labels: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits.double(), labels))


def assert_sound(made: Fitted, logits: Tensor) -> None:
    """Probabilities, above 0 where the class is not masked, that sum to 1; the argmax where it is promised."""
    found = made(logits)
    if isinstance(found, Top):
        assert made.calibrator.scope == "top"
        assert torch.equal(found.predicted, logits.argmax(1))
        assert found.confidence.shape == found.predicted.shape == logits.shape[:1]
        assert bool(((found.confidence > 0) & (found.confidence <= 1)).all())
        return
    assert made.calibrator.scope == "full"
    assert found.shape == logits.shape
    assert not bool(found.isnan().any())
    assert torch.equal(found == -torch.inf, logits == -torch.inf)
    assert bool((found < torch.inf).all())
    torch.testing.assert_close(
        found.double().softmax(1).sum(1), torch.ones(len(logits), dtype=torch.float64), rtol=0, atol=1e-12
    )
    if made.calibrator.keeps_argmax:
        assert torch.equal(found.argmax(1), logits.argmax(1))


@every
def test_it_is_described_and_its_spec_comes_back(variant: Variant) -> None:
    assert variant.piece.scope in ("full", "top")
    assert isinstance(variant.piece.keeps_argmax, bool)
    assert variant.piece.keeps_argmax or variant.piece.scope == "full"
    again = cal.calibrator(str(variant.piece))
    assert again == variant.piece == cal.calibrator(variant.spec)
    assert str(again) == str(variant.piece)
    assert hash(again) == hash(variant.piece)


@every
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_it_gives_is_sound(variant: Variant, classes: int, dtype: torch.dtype) -> None:
    logits, labels = batch(300, classes, seed=1)
    logits = logits.to(dtype)
    made = fit(variant.piece, logits, labels)
    for rows in (logits, 3 * batch(200, classes, seed=2)[0].to(dtype)):
        assert_sound(made, rows)
    found = made(logits)
    assert isinstance(found, Top) or found.dtype == dtype
    assert made.classes == classes


@every
def test_shapes_say_what_a_state_is(variant: Variant) -> None:
    made = fitted(variant.spec)
    assert isinstance(made.calibrator, Calibrator)
    check_state(made.calibrator, made.state, 4)
    assert all(not tensor.requires_grad for tensor in made.state.values())
    if not made.state:
        return
    name, tensor = sorted(made.state.items())[0]
    wrong: list[dict[str, Tensor]] = [
        {},
        {**made.state, "more": torch.zeros(1)},
        {**made.state, name: tensor[None]},
        {**made.state, name: tensor.to(torch.complex64)},
        {**made.state, name: torch.full(tensor.shape, torch.nan, dtype=torch.float64)},
    ]
    for state in wrong:
        with pytest.raises(CalibrantError, match="fit it again"):
            check_state(made.calibrator, state, 4)


@full
def test_its_log_loss_is_not_above_that_of_identity_on_its_own_rows(variant: Variant) -> None:
    for n, k, sharpen in ((400, 4, 1.6), (300, 2, 0.6), (120, 6, 1.0)):
        logits, labels = batch(n, k, seed=3, sharpen=sharpen)
        after = fit(variant.piece, logits, labels)(logits)
        assert isinstance(after, Tensor)
        worse = log_loss(after, labels) > log_loss(logits, labels) + 1e-9  # what stops a solver
        assert not worse or variant.spec in NOT_BY_LOG_LOSS, f"{n=} {k=}"


@every
def test_what_is_calibrated_stays_nearly_as_it_is(variant: Variant) -> None:
    logits, labels = batch(4000, 3, seed=4, sharpen=1.0)
    made = fit(variant.piece, logits, labels)
    found, before = made(logits), logits.softmax(1)
    raw = before.amax(1) if isinstance(found, Top) else before
    # 15 bins move a probability by a quarter of 1/15 on average, and 4,000 rows know a share to about 0.02
    assert float((numbers(found) - raw).abs().mean()) < 0.04


@every
def test_saved_and_loaded_it_gives_the_same_bits(variant: Variant, tmp_path: Path) -> None:
    made = fitted(variant.spec)
    made.save(tmp_path / "cal")
    again = cal.load_calibrator(tmp_path / "cal")
    assert again.calibrator == made.calibrator
    assert again.classes == made.classes
    assert again.notes == made.notes
    assert dict(again.provenance) == dict(made.provenance)
    for rows in (batch(seed=5)[0], batch(seed=5)[0].float()):
        one, two = made(rows), again(rows)
        if isinstance(one, Top):
            assert isinstance(two, Top)
            assert torch.equal(one.predicted, two.predicted)
            one, two = one.confidence, two.confidence
        assert isinstance(two, Tensor)
        assert torch.equal(one, two)


@every
def test_the_order_of_rows_means_nothing(variant: Variant) -> None:
    logits, labels = batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    one = numbers(fitted(variant.spec)(logits))
    two = numbers(fit(variant.piece, logits[order], labels[order])(logits))
    # sums in another order differ by some 1e-16, which a solver's last step makes 1e-8 at most
    torch.testing.assert_close(two, one, rtol=0, atol=1e-7)


@every
def test_a_row_does_not_depend_on_its_neighbours(variant: Variant) -> None:
    logits, _ = batch(seed=6)
    together = numbers(fitted(variant.spec)(logits))
    alone = torch.cat([numbers(fitted(variant.spec)(logits[i : i + 1])) for i in range(5)])
    torch.testing.assert_close(alone, together[:5], rtol=1e-12, atol=1e-14)
    assert len(numbers(fitted(variant.spec)(logits[:0]))) == 0


@every
@pytest.mark.parametrize("classes", [40, 1000])
def test_many_classes(variant: Variant, classes: int) -> None:
    if classes == 1000 and variant.name in COSTLY:
        classes = 20
    logits, labels = batch(300, classes, seed=7)
    made = fit(variant.piece, logits.float(), labels)
    assert_sound(made, 2 * batch(50, classes, seed=8)[0].float())


@every
def test_a_class_that_the_fit_never_saw_is_not_lost(variant: Variant) -> None:
    logits, labels = batch(600, 4, seed=9)
    seen = labels != 3
    made = fit(variant.piece, logits[seen], labels[seen])
    assert_sound(made, logits)
    found = made(logits)
    if isinstance(found, Tensor):
        kept = found.double().softmax(1)[:, 3].mean() / logits.softmax(1)[:, 3].mean()
        assert float(kept) > 1e-3, "its column is gone, which no row without the class can ask for"


def unusual() -> dict[str, tuple[Tensor, Tensor]]:
    logits, labels = batch(60, 4, seed=10)
    top = logits.argmax(1)
    masked = logits.clone()
    masked[::3, 1] = -torch.inf
    masked[1::3, 2:] = -torch.inf
    free = torch.where(labels.eq(1) | labels.ge(2), 0, labels)
    return {
        "one row": (logits[:1], labels[:1]),
        "two rows": (logits[:2], labels[:2]),
        "all right": (logits, top),
        "all wrong": (logits, logits.argmin(1)),
        "one class": (logits, torch.zeros_like(labels)),
        "constant logits": (torch.zeros_like(logits), labels),
        "equal rows": (logits[:1].repeat(60, 1), labels),
        "large logits": (1e4 * logits, labels),
        "small logits": (1e-4 * logits, labels),
        "masked": (masked, free),
        "certain and right": (1e3 * torch.nn.functional.one_hot(labels, 4).double(), labels),
    }


@every
@pytest.mark.parametrize("case", unusual())
def test_unusual_rows_are_fitted(variant: Variant, case: str) -> None:
    logits, labels = unusual()[case]
    made = fit(variant.piece, logits, labels)
    check_state(made.calibrator, made.state, 4)
    assert sound(made), "its file would be refused"
    assert_sound(made, logits)
    assert_sound(made, batch(seed=11)[0])


@every
def test_masked_classes_keep_probability_zero(variant: Variant) -> None:
    logits, _ = unusual()["masked"]
    assert_sound(fitted(variant.spec), logits)


@every
def test_inputs_are_left_alone(variant: Variant) -> None:
    logits, labels = batch()
    kept = logits.clone(), labels.clone()
    versions = logits._version, labels._version
    made = fit(variant.piece, logits, labels)
    state = {name: tensor.clone() for name, tensor in made.state.items()}
    made(logits)
    assert (logits._version, labels._version) == versions
    assert torch.equal(logits, kept[0])
    assert torch.equal(labels, kept[1])
    for name, tensor in state.items():
        assert torch.equal(made.state[name], tensor)
    again = made(logits)
    assert torch.equal(numbers(again), numbers(made(logits)))


@every
def test_numpy_lists_and_half_precision_are_taken(variant: Variant) -> None:
    logits, labels = batch(100, 3, seed=12)
    half = logits.half()
    one = fit(variant.piece, half.float(), labels)
    for z, y in ((half, labels.int()), (half.float().numpy(), labels.numpy())):
        other = fit(variant.piece, z, y)
        for name, tensor in one.state.items():
            assert torch.equal(other.state[name], tensor)
    wanted = numbers(one(half.float()))
    assert torch.equal(numbers(one(half)), wanted)
    assert torch.equal(numbers(one(half.float().numpy())), wanted)
    assert torch.equal(numbers(one(half.float().requires_grad_())), wanted)


@every
def test_float32_and_float64_agree(variant: Variant) -> None:
    logits, labels = batch(seed=13)
    short = logits.float()
    narrow, wide = fit(variant.piece, short, labels), fit(variant.piece, short.double(), labels)
    apart = (numbers(narrow(short)) - numbers(wide(short.double()))).abs()
    # float32 moves a probability by some 1e-7 and a flat optimum by more; a row at the edge of a bin may change its bin
    assert float(apart.quantile(0.98)) < 1e-4


@every
def test_what_cannot_be_fitted_is_refused_in_a_sentence(variant: Variant) -> None:
    logits, labels = batch(8, 3)
    nan, masked = logits.clone(), logits.clone()
    nan[2, 1] = torch.nan
    masked[3, labels[3]] = -torch.inf
    for z, y, told in (
        (nan, labels, "row 2 has NaN"),
        (masked, labels, "row 3 masks the true class"),
        (logits, labels + 5, "outside 0..2"),
        (logits[:0], labels[:0], "no rows"),
        (logits, labels[:4], "4 rows where 8 are wanted"),
        (logits[:, :1], labels * 0, "at least two classes"),
        (logits, logits, "looks one-hot"),
    ):
        with pytest.raises(InputError, match=told):
            variant.piece.fit(z, y)
    for z in (logits, logits[0]):
        with pytest.raises(InputError, match=r"was fitted to 4 classes|shape \(3,\)"):
            fitted(variant.spec)(z)


@every
def test_applying_reads_no_value(variant: Variant) -> None:
    """Fake tensors have shapes and no values: what could not be exported as it stands fails."""
    made = fitted(variant.spec)
    with FakeTensorMode() as mode:
        state = {name: mode.from_tensor(tensor) for name, tensor in made.state.items()}
        found = made.calibrator.apply(state, torch.empty(7, 4))
    assert (found.confidence.shape if isinstance(found, Top) else found.shape) in ((7,), (7, 4))


def others(parameter: Parameter, value: Any) -> list[Any]:
    """Other values that a parameter may take."""
    if parameter.type is str:
        return ["identity", "temperature > temperature"]
    if isinstance(value, bool):
        return [not value]
    if typing.get_origin(parameter.type) is typing.Literal:
        return [other for other in typing.get_args(parameter.type) if other != value]
    if isinstance(value, int):
        return [value + 3, value + 1, max(1, value - 1), max(1, value // 2), value + 20]
    if isinstance(value, float):
        return [1.5 * value + 0.25, 0.5 * value, value + 1, 10 * value, 0.1 * value]
    if isinstance(value, tuple):
        return [value[:1], value[1:]]
    if value is None:
        return [3, 0.5, 0.01, 10]
    raise AssertionError(f"give {parameter.name} a value to try")


def biased(n: int) -> tuple[Tensor, Tensor]:
    """Rows of which one temperature is not all that is wrong: some classes are too likely, and two are confused."""
    g = torch.Generator().manual_seed(14)
    logits = 1.5 * torch.randn(n, 4, generator=g, dtype=torch.float64)
    truth = (
        logits @ torch.tensor([[0.7, 0.3, 0, 0], [0.0, 0.5, 0, 0], [0, 0, 0.6, 0], [0, 0, 0.2, 0.4]]).double()
    )
    truth += torch.tensor([0.5, 0.0, -0.8, 0.2])
    return logits, truth.softmax(1).multinomial(1, generator=g)[:, 0]


NEEDS: dict[str, dict[str, Any]] = {
    "temperature": {"objective": "ece"},
    "dirichlet": {"strength": 0.05},
    "matrix": {"strength": 0.05},
}
"""Choices under which the other parameters of a calibrator are read at all."""


@pytest.mark.parametrize("entry", describe("calibrators"), ids=lambda entry: entry.name)
def test_every_parameter_changes_something(entry: Entry) -> None:
    logits, labels = biased(500)

    def result(piece: Procedure) -> tuple[str, ...]:
        made = fit(piece, logits, labels)
        return (
            *made.notes,
            *(f"{n} {t.tolist()}" for n, t in made.state.items()),
            str(numbers(made(logits)).tolist()),
        )

    silent = []
    bases = [*(v.piece for v in variants(entry)), replace(entry.piece(), **NEEDS.get(entry.name, {}))]
    before: dict[Any, tuple[str, ...]] = {}
    for parameter in parameters(entry.piece):
        if not any(changes(base, parameter, result, before) for base in bases):
            silent.append(parameter.name)
    assert silent == []


def changes(base: Any, parameter: Parameter, result: Any, before: dict[Any, tuple[str, ...]]) -> bool:
    """Whether another value of a parameter gives another state or another output."""
    if base not in before:
        before[base] = result(base)
    for other in others(parameter, getattr(base, parameter.name)):
        try:
            if result(replace(base, **{parameter.name: other})) != before[base]:
                return True
        except CalibrantError:
            continue
    return False


def test_the_registry_is_not_empty() -> None:
    assert {v.name for v in VARIANTS} >= {"identity", "temperature", "auto"}
    assert len({v.spec for v in VARIANTS}) == len(VARIANTS)
