"""The house rule: rooms import downwards, siblings not each other, and the core needs torch and numpy alone.

Imports are read from the source with `ast`, wherever they stand: at the top, inside a function, under
`TYPE_CHECKING`, relative, or as a literal argument of `import_module`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "calibrant"

METHODS = {"losses", "surrogates", "meta", "calibrators", "metrics", "data", "models"}
BELOW: dict[str, set[str]] = {
    "core": set(),
    **{room: {"core"} for room in METHODS},
    "sample": {"core", "data"},
    "train": METHODS | {"core"},
    "scale": METHODS | {"core"},
    "study": METHODS | {"core", "train", "scale"},
    "report": METHODS | {"core", "scale"},  # reads results, and never trains
}
BELOW["interop"] = set(BELOW)
BELOW["cli"] = set(BELOW)
FRONT = {"__init__", "__main__"}  # the front door: it may name every room, and loads them on first use

BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
MAX_LINES = 300

NEEDED = {"torch", "numpy", "calibrant"}
OPTIONAL = {"scipy", "safetensors", "typer", "rich", "jinja2", "sklearn", "pyarrow", "ray", "matplotlib"}
OPTIONAL |= {"onnx", "torchmetrics", "pandas", "duckdb"}
FACES = {
    "cli": {"typer", "rich"},
    "report": {"rich", "jinja2"},
    "interop": OPTIONAL,
}  # off the core import path


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, with where it stands and whether it runs when its module is imported."""

    module: str
    line: int
    at_import: bool


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """`calibrant.core.spec` for a file of the package; a package's own file has the package's name."""
    parts = ("calibrant", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(source: str, module: str, package: bool = False) -> Iterator[Import]:
    """Every import of a module, wherever it stands in it."""
    tree = ast.parse(source)
    later: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            later.update(ast.walk(node))
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            later.update(child for statement in node.body for child in ast.walk(statement))
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=source_module, names=names, level=level):
                base = source_module or ""
                if level:
                    parts = module.split(".")
                    above = parts[: len(parts) - level + package]
                    base = ".".join([*above, *([base] if base else [])])
                found = [f"{base}.{alias.name}" for alias in names]
            case ast.Call(func=func, args=[ast.Constant(value=str() as name), *_]) if is_importer(func):
                found = [name]
            case _:
                continue
        for name in found:
            yield Import(name, node.lineno, node not in later)


def is_importer(func: ast.expr) -> bool:
    return ast.unparse(func).split(".")[-1] in ("import_module", "__import__")


def imports_of(path: Path) -> Iterator[Import]:
    return imports(path.read_text(encoding="utf-8"), dotted(path), path.name == "__init__.py")


def breaches(path_room: str, found: Iterator[Import]) -> list[str]:
    """What one module of a room imports of ours and must not."""
    wrong = []
    for item in found:
        parts = item.module.split(".")
        if parts[0] != "calibrant" or (len(parts) > 1 and parts[1] == path_room):
            continue
        target = parts[1] if len(parts) > 1 else ""
        if target == "__version__":
            continue
        if target not in BELOW:
            wrong.append(
                f"line {item.line}: imports {item.module}; name the room it comes from, not the front door"
            )
        elif target not in BELOW[path_room]:
            allowed = ", ".join(sorted(BELOW[path_room])) or "no room"
            wrong.append(f"line {item.line}: {path_room} imports {target}, but may import only {allowed}")
    return wrong


def test_every_module_is_in_a_known_room() -> None:
    unknown = {room(path) for path in modules()} - set(BELOW) - FRONT
    assert not unknown, f"rooms without a place in the house: {sorted(unknown)}; give them one in BELOW"
    assert len(modules()) > 2


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_down(path: Path) -> None:
    wrong = [] if room(path) in FRONT else breaches(room(path), imports_of(path))
    assert not wrong, f"{path.relative_to(PACKAGE)}: " + "; ".join(wrong)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("calibrant.core.spec", "from calibrant.metrics import ECE"),
        ("calibrant.core.spec", "from calibrant import metrics"),
        ("calibrant.core.spec", "from calibrant import Predictions"),
        ("calibrant.core.spec", "def f():\n    import calibrant.train.loop"),
        (
            "calibrant.core.spec",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from calibrant.data import x",
        ),
        ("calibrant.core.spec", "from ..metrics import ECE"),
        ("calibrant.core.spec", "from .. import metrics"),
        ("calibrant.core.spec", "import importlib\nimportlib.import_module('calibrant.metrics')"),
        ("calibrant.metrics.ece", "from calibrant.losses import Focal"),
        ("calibrant.metrics.ece", "import calibrant"),
        ("calibrant.report.page", "from calibrant.train import run"),
        ("calibrant.study.plan", "from calibrant.report import page"),
        ("calibrant.train.loop", "from calibrant.scale import merge"),
        ("calibrant.sample.make", "from calibrant.metrics import ECE"),
        ("calibrant.interop.sklearn", "from calibrant.cli import app"),
    ],
)
def test_a_breach_is_seen(module: str, source: str) -> None:
    assert len(breaches(module.split(".")[1], imports(source, module))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "calibrant.cli.evaluate",
            "from calibrant.report.text import table\nfrom calibrant.study import plan",
        ),
        ("calibrant.study.plan", "from calibrant.train import run\nfrom calibrant import __version__"),
        ("calibrant.metrics.ece", "from calibrant.core.binning import edges\nfrom .scores import Scores"),
        ("calibrant.interop.sklearn", "from calibrant.calibrators import Temperature\nimport sklearn"),
    ],
)
def test_a_good_import_is_no_breach(module: str, source: str) -> None:
    assert breaches(module.split(".")[1], imports(source, module)) == []


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_module_names_say_what_is_inside(path: Path) -> None:
    vague = BANNED_NAMES & set(path.relative_to(PACKAGE).with_suffix("").parts)
    assert not vague, f"{path.relative_to(PACKAGE)}: {vague.pop()!r} says nothing of what is inside"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_no_module_is_two(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{path.relative_to(PACKAGE)} has {lines} lines: a room with two purposes"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_only_torch_and_numpy_at_the_top(path: Path) -> None:
    allowed = NEEDED | FACES.get(room(path), set()) | sys.stdlib_module_names
    roots = {item.module.split(".")[0]: item.line for item in imports_of(path) if item.at_import}
    wrong = {root: line for root, line in roots.items() if root not in allowed}
    assert not wrong, f"{path.relative_to(PACKAGE)}: import {wrong} inside the function that uses it"


IMPORT_ALL = """
import importlib, pkgutil, sys
import calibrant
for room in {rooms!r}:
    try:
        package = importlib.import_module("calibrant." + room)
    except ModuleNotFoundError as error:
        if error.name != "calibrant." + room:
            raise
        continue
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
for name in calibrant.__all__:
    getattr(calibrant, name)
print(*sorted({optional!r} & set(sys.modules)))
"""


def test_importing_the_library_loads_nothing_optional() -> None:
    rooms = sorted(set(BELOW) - set(FACES))
    code = IMPORT_ALL.format(rooms=rooms, optional=OPTIONAL - {"jinja2"})  # torch itself may load jinja2
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
