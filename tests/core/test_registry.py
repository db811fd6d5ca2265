"""Pieces are found by name, described from their code, and cannot take each other's names."""

from __future__ import annotations

import dataclasses
import pkgutil
from dataclasses import dataclass, field

import pytest

import calibrant.metrics
from calibrant.core import registry
from calibrant.core.errors import SpecError
from calibrant.core.registry import (
    ROOMS,
    Entry,
    describe,
    lookup,
    name_of,
    names,
    parameters,
    register,
    type_name,
)

ENTRIES = [entry for kind in ROOMS for entry in describe(kind)]


@dataclass(frozen=True)
class Toy:
    """One sentence
    on two lines.

    And more.
    """

    needed: int
    given: float = 0.5
    made: str = field(default_factory=lambda: "x" * 2)


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_pieces", {kind: dict(found) for kind, found in registry._pieces.items()})
    monkeypatch.setattr(registry, "_names", dict(registry._names))


def test_names_that_acceptance_relies_on() -> None:
    promised = "error nll brier ece mce rmsce ace classwise_ece top_label_ece debiased_ece smece sece kde_ece"
    assert set(promised.split()) | {"overconfidence", "auroc", "aurc"} <= set(names("metrics"))
    assert "synthetic" in names("datasets")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.kind}-{e.name}")
def test_every_piece_is_a_frozen_dataclass_under_one_name(entry: Entry) -> None:
    assert dataclasses.is_dataclass(entry.piece)
    made = entry.piece(**{p.name: p.default for p in entry.parameters})
    assert name_of(made) == entry.name
    assert lookup(entry.kind, entry.name) is entry.piece
    assert made == entry.piece(**{p.name: p.default for p in entry.parameters})
    assert hash(made) == hash(entry.piece(**{p.name: p.default for p in entry.parameters}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.something = 1


def test_description_is_in_name_order_and_complete() -> None:
    found = describe("metrics")
    assert [entry.name for entry in found] == names("metrics") == sorted(names("metrics"))
    modules = {entry.piece.__module__ for entry in found}
    assert all(module.startswith("calibrant.metrics.") for module in modules)
    files = {f"calibrant.metrics.{m.name}" for m in pkgutil.iter_modules(calibrant.metrics.__path__)}
    assert modules <= files


@pytest.mark.usefixtures("sandbox")
def test_what_is_registered_is_described() -> None:
    register("metrics", "toy", paper="someone1999")(Toy)
    entry = next(e for e in describe("metrics") if e.name == "toy")
    assert entry.summary == "One sentence on two lines."
    assert entry.doc.endswith("And more.")
    assert entry.paper == "someone1999"
    assert entry.canonical == 'toy(given=0.5, made="xx")'  # what is required has no default to show
    assert [(p.name, p.required) for p in parameters(Toy)] == [
        ("needed", True),
        ("given", False),
        ("made", False),
    ]
    assert parameters(Toy)[0].type is int
    assert parameters(Toy)[2].default == "xx"
    assert name_of(Toy(1)) == "toy"


@pytest.mark.usefixtures("sandbox")
def test_a_taken_name_is_refused_and_the_same_class_again_is_not() -> None:
    register("metrics", "toy")(Toy)
    register("metrics", "toy")(Toy)

    @dataclass(frozen=True)
    class Other:
        x: int = 0

    with pytest.raises(ValueError, match=r"metrics 'toy' is already .*Toy"):
        register("metrics", "toy")(Other)
    assert lookup("metrics", "toy") is Toy
    with pytest.raises(ValueError, match="metrics 'ece' is already"):
        register("metrics", "ece")(Toy)


def test_kinds_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match=r"no kind 'metric'; did you mean 'metrics'\?"):
        register("metric", "toy")
    with pytest.raises(SpecError, match=r"no kind 'metric'; did you mean 'metrics'\?"):
        names("metric")


@pytest.mark.parametrize("kind", ROOMS)
def test_a_name_that_does_not_exist(kind: str) -> None:
    with pytest.raises(SpecError, match=r"^no .*'no such thing'"):
        lookup(kind, "no such thing")


def test_a_broken_room_is_not_taken_for_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str) -> None:
        raise ModuleNotFoundError("No module named 'numpi'", name="numpi")

    monkeypatch.setattr(registry.importlib, "import_module", fails)
    with pytest.raises(ModuleNotFoundError, match="numpi"):
        registry.discover.__wrapped__("metrics")


def test_types_have_names_that_people_read() -> None:
    assert type_name(int) == "int"
    assert type_name(float | None) == "float or None"
