"""Runs and recipes as values: canonical, hashed, read back, and refused where they make no sense."""

import math
import tomllib
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core.errors import CalibrantError, InputError, SpecError
from calibrant.train import RECIPES, Recipe, Run, recipe
from calibrant.train.run import changed, differences, from_toml, read_run, to_toml, usual_recipe, write_run

OTHER: dict[str, Any] = {
    "data": "synthetic",
    "model": "mlp",
    "loss": "focal(gamma=2)",
    "augment": "mixup(alpha=0.2) + pruning",
    "meta": "gamma_net",
    "meta_objective": "sece",
    "seed": 7,
    "split": "9:1",
    "split_seed": 3,
    "limit": 500,
    "recipe": recipe("sgd200"),
}
OTHER_RECIPE: dict[str, Any] = {
    "epochs": 3,
    "batch": 64,
    "optimizer": "adamw",
    "lr": 0.01,
    "momentum": 0.5,
    "nesterov": True,
    "weight_decay": 0.0,
    "schedule": "cosine",
    "drops": (2, 5),
    "warmup": 2,
    "clip": 1.0,
    "crop": 0,
    "flip": "alternating",
    "average": 0.9,
    "select": "nll",
    "precision": "float32",
}


def test_specs_are_kept_in_their_canonical_form() -> None:
    run = Run(loss="focal", model="resnet18", augment="mixup")
    assert run.loss == "focal(gamma=1, detach=False)"
    assert run.model == "resnet18(width=64)"
    assert run.augment == "mixup(alpha=1)"
    assert run == Run(loss="focal(gamma=1)", model="resnet18(width=64)", augment=" mixup( alpha=1 ) ")


def test_every_setting_is_part_of_the_id() -> None:
    assert set(OTHER) == {f.name for f in fields(Run)}
    assert set(OTHER_RECIPE) == {f.name for f in fields(Recipe)}
    base = Run(recipe=recipe("sgd350"), loss="focal", meta="gamma_net(bound=5)")
    ids = {base.id}
    ids |= {replace(base, **{name: value}).id for name, value in OTHER.items()}
    ids |= {
        replace(base, recipe=replace(base.recipe, **{name: value})).id for name, value in OTHER_RECIPE.items()
    }
    assert len(ids) == 1 + len(OTHER) + len(OTHER_RECIPE)


def test_a_run_is_read_back_from_its_file(tmp_path: Any) -> None:
    run = Run(**OTHER)
    write_run(tmp_path, run)
    assert read_run(tmp_path) == run
    assert tomllib.loads(to_toml(run))["limit"] == 500
    assert "limit" not in tomllib.loads(to_toml(Run()))


@given(
    lr=st.floats(1e-9, 1e3),
    decay=st.floats(0, 1),
    drops=st.sets(st.integers(1, 999), max_size=4),
    seed=st.integers(0),
)
def test_numbers_survive_the_file_to_the_last_bit(
    lr: float, decay: float, drops: set[int], seed: int
) -> None:
    run = Run(seed=seed, recipe=Recipe(5, lr=lr, weight_decay=decay, drops=tuple(sorted(drops))))
    assert from_toml(to_toml(run)) == run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("los = 'ce'", "did you mean 'loss'"),
        ("[recipe]\nepochs = 3\nlearning_rate = 1", "no setting 'learning_rate'"),
        ("loss = ", "this is no TOML"),
        ("loss = 'focl'", "did you mean 'focal'"),
        ("[recipe]\nlr = 1", "epochs"),
        ("seed = 'a'", "seed is a whole number, not 'a'"),
        ("seed = true", "seed is a whole number, not True"),
        ("seed = 1.0", "seed is a whole number, not 1.0"),
        ("loss = 3", "loss is a text, not 3"),
        ("[recipe]\nepochs = 3\nnesterov = 1", "nesterov is true or false, not 1"),
        ("[recipe]\nepochs = 3\nlr = 'a'", "lr is a number, not 'a'"),
        ("[recipe]\nepochs = 3\ndrops = [1, 'a']", "drops is a list of whole numbers"),
        ("recipe = 3", "recipe is a table of settings"),
    ],
)
def test_a_file_that_is_no_run_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^my\.toml: ") as told:
        from_toml(text, "my.toml")
    assert message in str(told.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed is 0 or more"),
        ({"split_seed": -1}, "split_seed is 0 or more"),
        ({"loss": "ce + mixup"}, "no loss, penalty or surrogate 'mixup'"),
        ({"augment": "mixup + mixup"}, "names mixup twice"),
        ({"augment": "2*mixup"}, "without factors"),
        ({"augment": "ce"}, "no augmentation 'ce'"),
        ({"data": "cifar11"}, "did you mean 'cifar10'"),
        ({"model": "resnet19"}, "did you mean 'resnet18'"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as told:
        Run(**changes)
    assert message in str(told.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch", 0),
        ("optimizer", "lion"),
        ("lr", 0.0),
        ("lr", math.inf),
        ("lr", math.nan),
        ("momentum", 1.0),
        ("weight_decay", -1e-3),
        ("schedule", "linear"),
        ("drops", (5, 3)),
        ("drops", (0,)),
        ("warmup", -1),
        ("clip", -1.0),
        ("crop", -1),
        ("average", 1.0),
        ("select", "ece"),
        ("precision", "fp16"),
        ("flip", "yes"),
    ],
)
def test_a_recipe_says_what_is_possible(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name}=") as told:
        Recipe(**{"epochs": 3, name: value})
    assert "; " in str(told.value)


def test_a_number_is_the_same_number_however_it_is_written() -> None:
    assert (
        Run(recipe=Recipe(3, lr=1, clip=2)).id == Run(recipe=Recipe(3, lr=1.0, clip=2.0)).id
    )  # as ints and floats
    assert from_toml("[recipe]\nepochs = 3\nlr = 1") == Run(recipe=Recipe(3, lr=1.0))


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(SpecError, match="momentum above 0"):
        Recipe(3, nesterov=True, momentum=0.0)


def test_the_recipes_are_those_of_the_papers() -> None:
    long, other = RECIPES["sgd350"][1], RECIPES["sgd200"][1]
    assert (long.epochs, long.drops, long.lr, long.momentum) == (350, (150, 250), 0.1, 0.9)
    assert (long.batch, long.weight_decay) == (128, 5e-4)
    assert (other.epochs, other.drops, other.batch, other.weight_decay) == (200, (100, 150), 512, 1e-4)
    assert RECIPES["short"][1].epochs == long.epochs // 10


def test_other_epochs_move_the_drops_in_proportion() -> None:
    assert recipe("sgd350", epochs=35).drops == (15, 25)
    assert recipe("sgd350", epochs=70, drops=(1, 2)).drops == (1, 2)
    assert recipe("short", epochs=1).warmup == 0
    run = changed(Run(recipe=recipe("sgd350")), {"epochs": "35"})
    assert run.recipe == recipe("sgd350", epochs=35)
    with pytest.raises(SpecError, match="at least 1 epoch"):
        recipe(epochs=0)
    with pytest.raises(SpecError, match="did you mean 'short'"):
        recipe("shrt")
    with pytest.raises(SpecError, match="did you mean 'momentum'"):
        recipe(momentm=0.5)


@pytest.mark.parametrize("steps", [1, 7])
def test_the_schedule_with_drops_is_torchs(steps: int) -> None:
    chosen = Recipe(10, drops=(3, 7), lr=0.1)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 7], 0.1)
    for epoch in range(10):
        assert chosen.rate(epoch, steps - 1, steps) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_the_cosine_is_torchs_after_a_linear_rise() -> None:
    chosen = Recipe(10, schedule="cosine", lr=0.3, warmup=2)
    rises = [chosen.rate(at // 4, at % 4, 4) for at in range(8)]
    assert rises == pytest.approx([0.3 * (at + 1) / 8 for at in range(8)], rel=1e-12)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * 4)
    for at in range(8 * 4):
        # torch computes it by a recursion, whose rounding grows
        assert chosen.rate(2 + at // 4, at % 4, 4) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        scheduler.step()


def test_settings_from_the_command_line_are_read_by_their_type() -> None:
    asked = {"lr": "0.05", "nesterov": "True", "drops": "(3, 5)", "seed": "4", "split": "9:1", "limit": "100"}
    run = changed(Run(recipe=recipe("sgd350")), asked)
    assert (run.recipe.lr, run.recipe.nesterov, run.recipe.drops) == (0.05, True, (3, 5))
    assert (run.seed, run.split, run.limit) == (4, "9:1", 100)
    for key, value, message in [
        ("lr", "fast", "is not a number"),
        ("batch", "1.5", "is not a whole number"),
        ("nesterov", "yes", "is not true or false"),
        ("drops", "a", "numbers such as"),
        ("limit", "many", "is not a whole number"),
        ("momntum", "0.5", "did you mean 'momentum'"),
    ]:
        with pytest.raises(SpecError) as told:
            changed(Run(), {key: value})
        assert message in str(told.value)


def test_the_difference_of_two_runs_names_the_setting() -> None:
    one, two = Run(), Run(seed=1, recipe=recipe("short", lr=0.2))
    assert differences(one, one) == []
    assert differences(one, two) == ["seed: 0 there, 1 asked for", "lr: 0.1 there, 0.2 asked for"]


def test_texts_have_a_recipe_of_their_own() -> None:
    assert usual_recipe(Run(model="text_cnn")) == "text"
    assert usual_recipe(Run(model="mlp")) == "short"
    assert usual_recipe(Run(model="mine:make")) == "short"


def test_a_factory_is_not_built_from_its_path() -> None:
    with pytest.raises(CalibrantError, match="factory of your own code"):
        _ = Run(model="os:system").network
