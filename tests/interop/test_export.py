"""Exported calibrators give what ours give: over the registry, so that a new one is covered by its name."""

from __future__ import annotations

import json
import sys
import typing
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from click.testing import Result
from torch import Tensor, nn
from typer.testing import CliRunner

import calibrant as cal
from calibrant.cli import app
from calibrant.core.calibration import CalibrationWarning, Fitted, Procedure, Top
from calibrant.core.errors import CalibrantError
from calibrant.core.registry import Entry, describe
from calibrant.interop.export import to_onnx, to_program

CHAINS = ("temperature > histogram(bins=15)", "vector > isotonic")
EXTRA = {"matrix": {"strength": 0.01}}
"""What a choice of this calibrator needs beside it."""


def pieces(entry: Entry) -> Iterator[Any]:
    """A calibrator as its defaults make it, and, among the slow tests, with every one choice made otherwise."""
    made = entry.piece()
    yield pytest.param(made, id=entry.name)
    for p in entry.parameters:
        for value in typing.get_args(p.type) if typing.get_origin(p.type) is typing.Literal else ():
            if value != p.default:
                changed = replace(made, **{p.name: value, **EXTRA.get(entry.name, {})})
                yield pytest.param(changed, id=f"{entry.name}-{value}", marks=pytest.mark.slow)


every = pytest.mark.parametrize(
    "piece",
    [
        *(piece for entry in describe("calibrators") for piece in pieces(entry)),
        *(pytest.param(cal.calibrator(chain), id=chain) for chain in CHAINS),
    ],
)


def rows(n: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits, float32, of an overconfident model with a masked class here and there, and labels."""
    g = torch.Generator().manual_seed(seed)
    logits = 2.5 * torch.randn(n, classes, generator=g)
    labels = (logits / 1.6).softmax(1).multinomial(1, generator=g)[:, 0]
    if classes > 2:
        masked = (torch.rand(n, classes, generator=g) < 0.02).scatter(1, labels[:, None], False)
        logits = logits.masked_fill(masked & (logits < logits.amax(1, keepdim=True)), -torch.inf)
    return logits, labels


def fit(piece: Procedure, classes: int = 4) -> Fitted:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return piece.fit(*rows(500, classes, seed=1))


def run(path: Path, *inputs: Tensor) -> list[Tensor]:
    """What onnxruntime gives."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    given = dict(zip(names, (each.numpy() for each in inputs), strict=True))
    return [torch.from_numpy(np.asarray(each)) for each in session.run(None, given)]


def parts(found: Tensor | Top | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if isinstance(found, Top):
        return found.predicted, found.confidence
    return found if isinstance(found, tuple) else (found,)


def assert_alike(found: Any, wanted: Tensor | Top) -> None:
    """To 1e-5, which is what is promised; float32 logits of size 100 are 8e-6 apart."""
    ours = parts(wanted)
    assert len(found) == len(ours)
    for one, other in zip(found, ours, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one.detach(), other, rtol=0, atol=1e-5)


@every
def test_onnxruntime_gives_what_we_give(piece: Procedure, tmp_path: Path) -> None:
    fitted = fit(piece)
    made = to_onnx(fitted, tmp_path / "cal.onnx")
    for n in (257, 1):
        logits, _ = rows(n, 4, seed=2)
        assert_alike(run(made.path, logits), fitted(logits))
    top = fitted.calibrator.scope == "top"
    assert list(made.outputs) == (["predicted", "confidence"] if top else ["calibrated"])


@every
def test_a_program_gives_what_we_give(piece: Procedure) -> None:
    fitted = fit(piece, 2)
    module = to_program(fitted).module()
    for n in (33, 1):
        logits, _ = rows(n, 2, seed=3)
        assert_alike(parts(module(logits)), fitted(logits))


@pytest.mark.slow
@every
@pytest.mark.parametrize("classes", [2, 100])
def test_onnxruntime_agrees_for_few_and_many_classes(piece: Procedure, classes: int, tmp_path: Path) -> None:
    fitted = fit(piece, classes)
    made = to_onnx(fitted, tmp_path / "cal.onnx")
    logits, _ = rows(300, classes, seed=2)
    assert_alike(run(made.path, logits), fitted(logits))


@pytest.mark.parametrize("spec", ["platt", "beta"])
def test_it_agrees_far_from_0(spec: str, tmp_path: Path) -> None:
    """Where a sigmoid is 0 or 1 in float32, as it is for the classes that a sharp model rules out."""
    logits, labels = rows(500, 6, seed=4)
    fitted = cal.calibrator(spec).fit(logits, labels)
    sharp = 8 * logits[:64]
    assert_alike(run(to_onnx(fitted, tmp_path / "cal.onnx").path, sharp), fitted(sharp))


class Net(nn.Module):
    """A small network with a layer that differs in train mode."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout()
        self.head = nn.Linear(4, classes)

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(self.norm(self.conv(image)).mean((2, 3))))
        return out


@pytest.fixture
def network() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize(("spec", "many"), [("temperature", 3), ("histogram", 1)])
def test_a_model_and_its_calibrator_are_one_file(network: Net, spec: str, many: int, tmp_path: Path) -> None:
    fitted = cal.calibrator(spec).fit(*rows(300, 3, seed=5))
    network.norm.eval()
    modes = [module.training for module in network.modules()]
    made = to_onnx(fitted, tmp_path / "net.onnx", network, torch.randn(many, 2, 8, 8))
    assert [module.training for module in network.modules()] == modes
    assert made.inputs == {"input": (None, 2, 8, 8)}
    images = torch.randn(9, 2, 8, 8)
    with torch.no_grad():
        wanted = fitted(network.eval()(images))
    assert_alike(run(made.path, images), wanted)
    assert_alike(parts(to_program(fitted, network, images).module()(images[:1])), fitted(network(images[:1])))


def test_a_model_may_take_several_inputs(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    logits, labels = rows(300, 3, seed=5)
    fitted = cal.calibrator("temperature").fit(logits, labels)
    made = to_onnx(fitted, tmp_path / "sum.onnx", Sum(), (logits[:2], logits[:2]))
    assert list(made.inputs) == ["input_0", "input_1"]
    assert_alike(run(made.path, logits / 4, logits / 4), fitted(logits / 2))


def test_the_file_tells_what_it_is_and_not_where_it_was_made(network: Net, tmp_path: Path) -> None:
    fitted = cal.calibrator("temperature").fit(*rows(300, 3, seed=5))
    made = to_onnx(fitted, tmp_path / "net.onnx", network, torch.randn(2, 2, 8, 8))
    proto = onnx.load(made.path)
    onnx.checker.check_model(proto, full_check=True)
    assert {entry.key: entry.value for entry in proto.metadata_props} == {
        "calibrant.calibrator": str(fitted.calibrator),
        "calibrant.classes": "3",
        "calibrant.scope": "full",
        "calibrant.version": cal.__version__,
    }
    assert cal.calibrator(dict(made.metadata)["calibrant.calibrator"]) == fitted.calibrator
    assert b"forward" not in made.path.read_bytes()
    assert str(Path(__file__).parent).encode() not in made.path.read_bytes()
    assert list(tmp_path.iterdir()) == [made.path]


class Dictionary(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x}


class Looks(nn.Module):
    """A model that asks for a value, which no tracing can answer."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


@pytest.mark.parametrize(
    ("model", "example", "told"),
    [
        (None, torch.zeros(2, 3), "an example is for a model"),
        (nn.Linear(5, 3), None, "give example=..."),
        (nn.Linear(5, 3), "abc", "an example is a tensor"),
        (nn.Linear(5, 3), torch.zeros(0, 5), r"\[0\] rows"),
        (nn.Linear(5, 3), (torch.zeros(2, 5), torch.zeros(3, 5)), r"\[2, 3\] rows"),
        (
            nn.Linear(5, 4),
            torch.zeros(2, 5),
            r"for 3 classes, and of 2 rows this model makes float32 \[2, 4\]",
        ),
        (Dictionary(), torch.zeros(2, 3), "gives dict"),
        (Looks(), torch.zeros(2, 3), "cannot trace this Looks"),
        (torch.sin, torch.zeros(2, 3), "is a torch.nn.Module"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(
    model: Any, example: Any, told: str, tmp_path: Path
) -> None:
    fitted = cal.calibrator("temperature").fit(*rows(300, 3, seed=5))
    with pytest.raises(CalibrantError, match=told) as caught:
        to_onnx(fitted, tmp_path / "net.onnx", model, example)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fitted = cal.calibrator("temperature").fit(*rows(300, 3, seed=5))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(CalibrantError, match=r"pip install 'calibrant\[onnx\]'"):
        to_onnx(fitted, tmp_path / "cal.onnx")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, args)])


def test_the_command_writes_the_same(tmp_path: Path) -> None:
    logits, labels = rows(300, 3, seed=5)
    fitted = cal.calibrator("temperature > histogram").fit(logits, labels)
    fitted.save(tmp_path / "cal.safetensors")
    done = invoke(tmp_path / "cal.safetensors", "--onnx", tmp_path / "cal.onnx", "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["calibrator"] == str(fitted.calibrator)
    assert told["inputs"] == {"logits": [None, 3]}
    assert told["outputs"] == {"predicted": [None], "confidence": [None]}
    assert told["onnx"] == str(tmp_path / "cal.onnx")
    assert_alike(run(tmp_path / "cal.onnx", logits), fitted(logits))
    plain = invoke(tmp_path / "cal.safetensors", "--onnx", tmp_path / "again.onnx")
    assert "gives predicted [N]" in plain.stdout
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "cal.onnx").read_bytes()


@pytest.mark.parametrize(
    ("cal_name", "out", "told"),
    [
        ("absent", "x.onnx", "there is no such file"),
        ("text", "x.onnx", "no safetensors file"),
        (".", "x.onnx", "this is a directory"),
        ("cal", ".", "this is a directory"),
        ("cal", "cal", "would replace what is read"),
        ("cal", "no/x.onnx", "there is no directory"),
    ],
)
def test_the_command_refuses_in_one_sentence(cal_name: str, out: str, told: str, tmp_path: Path) -> None:
    cal.calibrator("temperature").fit(*rows(300, 3, seed=5)).save(tmp_path / "cal")
    (tmp_path / "text").write_text("not a calibrator", encoding="utf-8")
    done = invoke(tmp_path / cal_name, "--onnx", tmp_path / out)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("calibrant: ")
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
    assert {each.name for each in tmp_path.iterdir()} == {"cal", "text"}
