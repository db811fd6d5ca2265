"""A study that is wrong is refused before anything runs, with its line and the nearest name."""

import re

import pytest
from tests.study.conftest import TOY

from calibrant.core.errors import CalibrantError
from calibrant.study import grid, load, read, shipped
from calibrant.study.source import Source


def line_of(text: str) -> int:
    return TOY[: TOY.index(text)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("reference =", "referense =", "there is no 'referense' in a study; did you mean 'reference'?"),
        ('reference = "ce"', 'reference = "cee"', "no axis has the level 'cee'; did you mean 'ce'?"),
        ('focal = "focal(gamma=3)"', 'focal = "focl"', "'focl'; did you mean 'focal'?"),
        ('focal = "focal(gamma=3)"', 'focal = "focal(gama=3)"', "did you mean 'gamma'?"),
        ('model = "mlp(width=4)"', 'model = "mpl"', "did you mean 'mlp'?"),
        ('model = "mlp(width=4)"', 'model = "own:make"', "which a study does not load"),
        ('data = "synthetic(classes=3, train=320, test=200)"', 'data = "cifar11"', "did you mean 'cifar10'?"),
        ('recipe = "short"', 'recipe = "shot"', "did you mean 'short'?"),
        ("epochs = 3", "epocs = 3", "did you mean 'epochs'?"),
        ("epochs = 3", "epochs = 0", "epochs=0 is not possible"),
        ("epochs = 3", 'epochs = "three"', "is not a whole number"),
        ("epochs = 3", "seed = 3", "names its seeds with 'seeds'"),
        ('raw = "identity"', 'raw = "temperature"', "'raw' is the name of identity"),
        ('temperature = "temperature"', 'temperature = "temprature"', "did you mean 'temperature'?"),
        ('metrics = ["error"', 'metrics = ["eror"', "did you mean 'error'?"),
        ('metrics = ["error"', 'metrics = ["nll"', "is there twice"),
        ("seeds = 2", "seeds = 0", "at least 1, not 0"),
        ("seeds = 2", 'seeds = "two"', "seeds is a whole number"),
        ("seeds = 2", "seedz = 2", "there is no 'seedz' in [scale.tiny]; did you mean 'seeds'?"),
        ("seeds = 2", "", "[scale.tiny] needs 'seeds', a whole number"),
        ("[scale.tiny]", "[scale.tinny]", "there is no scale 'tinny'; did you mean 'tiny'?"),
        (
            'judge = "ece after temperature: focal < ce"',
            'judge = "ece raw: focl < ce"',
            "no 'focl'; did you mean",
        ),
        (
            'judge = "ece after temperature: focal < ce"',
            'judge = "ece after temperatur: focal < ce"',
            "did you mean",
        ),
        (
            'judge = "ece after temperature: focal < ce"',
            'judge = "brier raw: focal < ce"',
            "does not measure",
        ),
        (
            'judge = "ece after temperature: focal < ce"',
            'judge = "ece raw focal, ce"',
            "cannot read the claim",
        ),
        ('judge = "ece after temperature: focal < ce"', 'judge = "ece: focal < ce"', "does not say of what"),
        (
            'judge = "ece after temperature: focal < ce"',
            'judge = "ece raw: ce < ce"',
            "two levels of one axis",
        ),
        ('judge = "ece after temperature: focal < ce"', 'judges = "x"', "did you mean 'judge'?"),
        ('quantity = "ece raw"', 'quantity = "temperature raw"', "does not measure 'temperature'"),
        ('unit = "%"', 'unit = "percent"', "unit is '%' or nothing"),
        ("focal = 1.01", "focal = true", "[mean, standard deviation]"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, message: str) -> None:
    assert TOY.count(old) == 1
    with pytest.raises(CalibrantError, match=re.escape(message)) as told:
        read(TOY.replace(old, new), "toy", "toy.toml")
    found = re.match(r"toy\.toml: line (\d+): ", str(told.value))
    assert found is not None
    # a key that is missing is named with the header of its table, what is wrong with its own line
    assert line_of(old) - 3 <= int(found[1]) <= line_of(old)
    assert "needs" in message or int(found[1]) == line_of(old)


def test_a_text_that_is_no_toml() -> None:
    with pytest.raises(CalibrantError, match=r"toy\.toml: this is no TOML: "):
        read("question = [", "toy", "toy.toml")


def test_lines_are_right_below_values_of_several_lines() -> None:
    text = 'a = """\nb = 1\n[c]\n"""\nd = [\n  "x = 2",\n]\n[[e]]\nf.g = 1 # f\n[[e]]\n"h = i" = { j = 1 }\n'
    lines = Source(text, "x").lines
    assert lines == {
        ("a",): 1,
        ("d",): 5,
        ("e", 0): 8,
        ("e", 0, "f"): 9,
        ("e", 0, "f", "g"): 9,
        ("e", 1): 10,
        ("e", 1, "h = i"): 11,
    }


def test_no_study_of_that_name() -> None:
    with pytest.raises(CalibrantError, match=r"no study 'pipelin'; did you mean 'pipeline'\?"):
        load("pipelin")
    with pytest.raises(CalibrantError, match="there is no such file"):
        load("nowhere.toml")


def test_settings_of_a_grid() -> None:
    study = read(TOY, "toy")
    plain = grid(study)
    assert [point.label for point in plain.points] == [
        "ce, seed 0",
        "ce, seed 1",
        "focal, seed 0",
        "focal, seed 1",
    ]
    assert len(plain.cells) == 8
    more = grid(study, {"seeds": "3"})
    assert {cell.key for cell in plain.cells} < {cell.key for cell in more.cells}
    other = grid(study, {"lr": "0.05"})
    assert not {cell.key for cell in plain.cells} & {cell.key for cell in other.cells}
    assert {point.run.recipe.lr for point in other.points} == {0.05}
    assert grid(study, {"scale": "full"}).seeds == (0, 1, 2)
    assert "the document's own scale" in grid(study, {"scale": "full"}).statement
    assert grid(study, {"scale": "full"}).as_published
    assert not grid(study, {"scale": "full", "lr": "0.05"}).as_published
    assert "not the document's scale: toy" in plain.statement


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": "tny"}, "did you mean 'tiny'?"),
        ({"seeds": "0"}, "is not the number of seeds"),
        ({"loss": "ce"}, "loss is an axis of toy"),
        ({"seed": "3"}, "write seeds=5"),
        ({"lrr": "3"}, "did you mean 'lr'?"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, str], message: str) -> None:
    with pytest.raises(CalibrantError, match=re.escape(message)):
        grid(read(TOY, "toy"), settings)


def test_settings_that_need_each_other_may_stand_in_different_places() -> None:
    text = TOY.replace('focal = "focal(gamma=3)"', 'focal = { loss = "focal", meta = "gamma_net" }')
    point = grid(read(text, "toy")).points[2]
    assert point.run.meta.startswith("gamma_net(")
    with pytest.raises(CalibrantError, match=r"line 16: no meta-regulariser 'gama_net'; did you mean"):
        read(text.replace("gamma_net", "gama_net"), "toy")
    with pytest.raises(CalibrantError, match="toy, focal: ce has no term 'focal'"):
        grid(read(text.replace('loss = "focal", meta', 'loss = "ce", meta'), "toy"))


def test_two_levels_that_are_one_run_are_refused() -> None:
    with pytest.raises(CalibrantError, match="ce, seed 0 and focal, seed 0 are the same run"):
        grid(read(TOY.replace('"focal(gamma=3)"', '"ce"'), "toy"))


def test_what_is_set_where() -> None:
    text = TOY + '\n[[where]]\nloss = "focal"\nset = { epochs = 5 }\n'
    runs = {point.at[0][1]: point.run for point in grid(read(text, "toy")).points}
    assert (runs["ce"].recipe.epochs, runs["focal"].recipe.epochs) == (3, 5)
    with pytest.raises(CalibrantError, match="has no 'focl'; did you mean 'focal'"):
        read(text.replace('loss = "focal"', 'loss = "focl"'), "toy")


def test_a_changed_default_changes_the_hash_and_spelling_does_not() -> None:
    def keys(text: str) -> list[str]:
        return [cell.key for cell in grid(read(text, "toy")).cells]

    assert keys(TOY) == keys(TOY.replace('"focal(gamma=3)"', '"focal( gamma = 3.0 )"'))
    assert keys(TOY)[4:] != keys(TOY.replace("gamma=3", "gamma=2"))[4:]
    assert keys(TOY)[:4] == keys(TOY.replace("gamma=3", "gamma=2"))[:4]
    # 140 bits of the first key, so that it does not change unseen between two versions
    assert all(re.fullmatch("[0-9a-f]{16}", key) for key in keys(TOY))


@pytest.mark.parametrize("name", shipped())
def test_shipped_studies_are_whole_at_every_scale(name: str) -> None:
    study = load(name)
    assert study.question.endswith("?")
    assert study.claims
    assert "raw" in study.calibrators
    assert {"error", "nll", "ece(bins=15)"} < set(study.metrics)
    for scale in study.scales:
        found = grid(study, {"scale": scale})
        assert len({cell.key for cell in found.cells}) == len(found.cells)
        assert all(re.fullmatch(r"00[0-2]-[a-z]", claim.id) for claim in study.claims)


def test_document_002_is_there_in_full() -> None:
    study = load("calibratable")
    assert sum(len(row.values) for row in study.published) == 4 * 4 * 5  # datasets, losses, rows
    full = grid(study, {"scale": "full"})
    losses = {point.at: point.run.loss for point in full.points}
    chosen = {at[0][1] + " " + at[1][1]: loss for at, loss in losses.items()}
    assert chosen["svhn label_smoothing"] == 'label_smoothing(epsilon=0.01, over="all")'
    assert chosen["cifar10 l1_norm"] == "ce + 0.05*lp_norm(p=1)"
    assert chosen["20newsgroups focal"] == "focal(gamma=5, detach=False)"
    assert full.points[0].run.recipe.epochs == 200


def test_document_000_has_the_rows_that_need_no_meta_regulariser() -> None:
    study = load("usual-losses")
    assert sum(len(row.values) for row in study.published) == 6 * (8 + 8 + 6)  # metrics, rows of each dataset
    point = next(p for p in grid(study, {"scale": "full"}).points if p.label == "cifar100 mixup, seed 0")
    assert point.run.augment == "mixup(alpha=1)"
    assert (point.run.recipe.epochs, point.run.recipe.select) == (350, "error")
