"""A training run as a frozen value: everything that decides its result, and nothing else.

Its canonical form is a TOML file in which every setting stands; its `id` is the hash of that form. The device, the
directory and how steps are executed are not part of it.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, cast, get_origin, get_type_hints

from calibrant.core.errors import CalibrantError, SpecError, nearest
from calibrant.core.files import atomic
from calibrant.core.meta import MetaRegularizer
from calibrant.core.objective import Objective, objective
from calibrant.core.place import Place
from calibrant.core.registry import lookup
from calibrant.core.samples import Dataset, Model
from calibrant.core.spec import build, canonical, make, parse
from calibrant.data.splits import sizes
from calibrant.train.recipe import Recipe, recipe

META_OBJECTIVE = "ce + 0.5*sece"
"""What the code that document 000 extends makes small; its own equation 2 has `sece` alone."""


class Augmentation(Protocol):
    """A piece of the kind "augment"."""


@dataclass(frozen=True)
class Run:
    """Data, network, loss and recipe by name, and the seeds; specs are brought to their canonical form.

    `meta` is a meta-regulariser such as "gamma_net(bound=5)", or "" for none; `meta_objective` is what moves it on the
    meta split, "ce + 0.5*sece" unless another is named.

    `seed` is that of weights, order and views; `split_seed` is that of train, val and meta. `limit` keeps the first
    rows of train. `augment` is a sum such as "mixup(alpha=0.2) + pruning", or "" for none.
    """

    data: str = "fashion-mini"
    model: str = "small_cnn"
    loss: str = "ce"
    augment: str = ""
    meta: str = ""
    meta_objective: str = ""
    seed: int = 0
    split: str = "8:1:1"
    split_seed: int = 0
    limit: int | None = None
    recipe: Recipe = field(default_factory=recipe)

    def __post_init__(self) -> None:
        for name in ("seed", "split_seed"):
            if getattr(self, name) < 0:
                raise SpecError(f"{name} is 0 or more, not {getattr(self, name)}")
        sizes(10**6, self.split)  # which says what no scheme is
        object.__setattr__(self, "data", canonical(self.dataset))
        object.__setattr__(self, "loss", str(self.objective))
        object.__setattr__(self, "augment", " + ".join(canonical(piece) for piece in self.augmentations))
        if ":" not in self.model:
            object.__setattr__(self, "model", canonical(self.network))
        meta = self.meta_regularizer
        if meta is None and self.meta_objective.strip():
            raise SpecError(
                f"meta_objective {self.meta_objective!r} moves nothing: name a meta-regulariser with meta"
            )
        object.__setattr__(self, "meta", "" if meta is None else canonical(meta))
        object.__setattr__(self, "meta_objective", "" if meta is None else str(self.held_objective))
        if meta is not None:
            meta.check(self.objective)

    @property
    def dataset(self) -> Dataset:
        """The dataset that `data` names."""
        return cast(Dataset, build(self.data, "datasets"))

    @property
    def network(self) -> Model:
        """The network that `model` names; a user's own factory, written with a colon, is handed to `train` instead."""
        if ":" in self.model:
            raise SpecError(
                f"{self.model} is a factory of your own code: name it with --model, and give it again to resume"
            )
        return cast(Model, build(self.model, "models"))

    @property
    def objective(self) -> Objective:
        """The loss as a criterion."""
        return objective(self.loss)

    @property
    def meta_regularizer(self) -> MetaRegularizer | None:
        """What is learned about the loss; None for a loss as it stands."""
        return cast(MetaRegularizer, build(self.meta, "meta")) if self.meta.strip() else None

    @property
    def held_objective(self) -> Objective:
        """What a meta-regulariser makes small on the meta split."""
        return objective(self.meta_objective.strip() or META_OBJECTIVE)

    @property
    def augmentations(self) -> tuple[Augmentation, ...]:
        """What is done to the training data beside crops and flips."""
        if not self.augment.strip():
            return ()
        terms = parse(self.augment).terms
        if any(term.factor != 1 for term in terms):
            raise SpecError(f"{self.augment!r}: augmentations are added up without factors")
        names = [term.call.name for term in terms]
        for name in names:
            lookup("augment", name)
            if names.count(name) > 1:
                raise SpecError(f"{self.augment!r} names {name} twice")
        return tuple(cast(Augmentation, make(term.call, "augment")) for term in terms)

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits of the hash of the canonical form."""
        return hashlib.sha256(to_toml(self).encode()).hexdigest()[:12]


def to_toml(run: Run) -> str:
    """Every setting of a run, in the order of the fields; a limit that is none is left out."""
    values = asdict(run)
    chosen = values.pop("recipe")
    lines = [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    lines += ["", "[recipe]", *(f"{name} = {_toml(value)}" for name, value in chosen.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def from_toml(text: str, source: str = "run.toml") -> Run:
    """A run from its canonical form; what is missing has its default, what is unknown is refused."""
    place = Place(source)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place.refuse(f"this is no TOML: {error}")
    chosen = values.pop("recipe", None)
    if chosen is not None and not isinstance(chosen, dict):
        place.refuse(f"recipe is a table of settings, not {chosen!r}; write [recipe] and its lines below")
    for given, kind in ((values, Run), (chosen or {}, Recipe)):
        hints = get_type_hints(kind)
        for name, value in given.items():
            if name not in hints:
                place.refuse(f"there is no setting {name!r}{nearest(name, hints)}")
            told = _mistyped(value, hints[name])
            if told:
                place.refuse(f"{name} is {told}, not {value!r}")
            given[name] = tuple(value) if isinstance(value, list) else value
    if chosen is not None and "epochs" not in chosen:
        place.refuse("a recipe needs its epochs; write epochs = 35")
    try:
        return Run(**values) if chosen is None else Run(**values, recipe=Recipe(**chosen))
    except CalibrantError as error:
        place.refuse(str(error))


def _mistyped(value: Any, hint: Any) -> str | None:
    """What a value should be, if it is not of the type of its setting."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if hint is bool:
        return None if isinstance(value, bool) else "true or false"
    if hint in (int, int | None):
        return None if whole else "a whole number"
    if hint is float:
        return None if whole or isinstance(value, float) else "a number"
    if get_origin(hint) is tuple:
        fine = isinstance(value, list) and all(type(each) is int for each in value)
        return None if fine else "a list of whole numbers"
    return None if isinstance(value, str) else "a text"


def read_run(directory: Path) -> Run:
    """The run of a run directory."""
    path = directory / "run.toml"
    if not path.is_file():
        Place(str(directory)).refuse("this is no run directory: it has no run.toml")
    return from_toml(path.read_text(encoding="utf-8"), str(path))


def write_run(directory: Path, run: Run) -> None:
    """Write run.toml."""
    with atomic(directory / "run.toml") as file:
        file.write(to_toml(run).encode())


def differences(one: Run, two: Run) -> list[str]:
    """What differs between two runs, a setting a line: `seed: 0 here, 1 there`."""
    a, b = asdict(one), asdict(two)
    a.update(a.pop("recipe")), b.update(b.pop("recipe"))
    return [f"{name}: {a[name]!r} there, {b[name]!r} asked for" for name in a if a[name] != b[name]]


def usual_recipe(run: Run) -> str:
    """The recipe for a run that names none: `text` for a network that reads texts alone, else `short`."""
    if ":" in run.model:
        return "short"
    return "text" if getattr(run.network, "reads", ()) == ("text",) else "short"


def changed(run: Run, settings: dict[str, str]) -> Run:
    """A run with settings such as {"lr": "0.05", "seed": "3"}, from the command line: each is read by its type.

    Other `epochs` move the drops and the warm-up that are not set themselves.
    """
    own = {f.name for f in fields(Run)} - {"recipe"}
    of_recipe = {f.name for f in fields(Recipe)}
    values: dict[str, Any] = {}
    recipe_values: dict[str, Any] = {}
    for name, text in settings.items():
        if name in own:
            values[name] = _read(name, text, getattr(run, name))
        elif name in of_recipe:
            recipe_values[name] = _read(name, text, getattr(run.recipe, name))
        else:
            raise SpecError(f"there is no setting {name!r}{nearest(name, [*own, *of_recipe])}")
    if recipe_values:
        lasting = run.recipe.lasting(recipe_values.get("epochs", run.recipe.epochs))
        values["recipe"] = replace(lasting, **recipe_values)
    return replace(run, **values)


def _read(name: str, text: str, now: Any) -> Any:
    """A value from its text, by the type of what stands there now."""
    plain = text.strip()
    if isinstance(now, str):
        return plain
    try:
        if isinstance(now, bool):
            return {"true": True, "false": False}[plain.lower()]
        if isinstance(now, tuple):
            return tuple(int(part) for part in plain.strip("()[] ").split(",") if part.strip())
        return float(plain) if isinstance(now, float) else int(plain)
    except (ValueError, KeyError):
        wanted = {bool: "true or false", tuple: "numbers such as 150,250", float: "a number"}
        raise SpecError(f"{name}={plain!r} is not {wanted.get(type(now), 'a whole number')}") from None
