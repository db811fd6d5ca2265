"""Calibrators that leave Python: as a program of `torch.export`, or as an ONNX file, alone or behind their model.

A file has the operations and numbers of the map and is traced from the code that `Fitted` runs, so that there is one
implementation. Any number of rows goes in. What comes out is `calibrated`, logits [N, K], or for a top-label calibrator
`predicted` and `confidence`, [N] each.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant import __version__
from calibrant.core.calibration import Fitted, Top
from calibrant.core.errors import CalibrantError, InputError
from calibrant.core.files import atomic
from calibrant.core.numerics import working_dtype
from calibrant.core.place import Place, show

OPSET = 20
LARGEST = (1 << 31) - 1
"""Bytes of an ONNX file: protobuf has no more."""

Example = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Exported:
    """What an ONNX file takes and gives: names with shapes, None where any number of rows goes."""

    path: Path
    inputs: Mapping[str, tuple[int | None, ...]]
    outputs: Mapping[str, tuple[int | None, ...]]
    metadata: Mapping[str, str]


class Calibrated(nn.Module):
    """A fitted calibrator as a module, behind a model that gives its logits or alone; its state is in its buffers."""

    def __init__(self, fitted: Fitted, model: nn.Module | None = None) -> None:
        super().__init__()
        self.model = model
        self.calibrator = fitted.calibrator
        self.state = dict(zip(fitted.state, (f"state_{i}" for i in range(len(fitted.state))), strict=True))
        for name, buffer in self.state.items():
            self.register_buffer(buffer, fitted.state[name].detach().clone())

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Calibrated logits, or the predicted class and its confidence."""
        logits = inputs[0] if self.model is None else self.model(*inputs)
        state = {name: self.get_buffer(buffer) for name, buffer in self.state.items()}
        found = self.calibrator.apply(state, logits.to(working_dtype(logits.dtype)))
        return (found.predicted, found.confidence) if isinstance(found, Top) else found


def to_program(
    fitted: Fitted, model: nn.Module | None = None, example: Example | None = None
) -> torch.export.ExportedProgram:
    """The program of a calibrator, or of a model and its calibrator, with any number of rows.

    `model` maps inputs to logits [N, K]; it is traced in eval mode with `example`, one tensor or a tuple of them.
    """
    inputs = _inputs(fitted, model, example)
    with _evaluating(model), torch.no_grad(), _quiet():
        if model is not None:
            _check_logits(model(*inputs), fitted, len(inputs[0]))
        module = Calibrated(fitted, model).eval()
        for buffer in module.state.values():
            setattr(module, buffer, module.get_buffer(buffer).to(inputs[0].device))
        rows = torch.export.Dim("rows")
        try:
            return torch.export.export(
                module, inputs, dynamic_shapes={"inputs": tuple({0: rows} for _ in inputs)}
            )
        except Exception as error:  # of a user's forward, which may raise anything
            what = f"{fitted.calibrator}" if model is None else f"this {type(model).__name__}"
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"torch.export cannot trace {show(what, 200)}: {show(told, 300)}") from error


def to_onnx(
    fitted: Fitted,
    path: str | os.PathLike[str],
    model: nn.Module | None = None,
    example: Example | None = None,
) -> Exported:
    """Write a calibrator, or a model and its calibrator, as one ONNX file; a whole file or none.

    Its metadata tell the calibrator, the classes, the scope and the version of Calibrant. Needs the extra `onnx`.
    """
    _needs_onnx()
    path = Path(path)
    _check_place(path)
    weights = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    if sum(t.numel() * t.element_size() for t in weights) > LARGEST:
        raise InputError(
            "an ONNX file has at most 2 GB, and this model is larger; export the calibrator alone, beside the model"
        )
    program = to_program(fitted, model, example)
    many = len(program.graph_signature.user_inputs)
    if model is None:
        inputs = ["logits"]
    else:
        inputs = ["input"] if many == 1 else [f"input_{i}" for i in range(many)]
    outputs = ["calibrated"] if fitted.calibrator.scope == "full" else ["predicted", "confidence"]
    with _quiet():
        made: Any = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=outputs,
            opset_version=OPSET,
        )
    proto = made.model_proto
    metadata = {
        "calibrant.calibrator": str(fitted.calibrator),
        "calibrant.classes": str(fitted.classes),
        "calibrant.scope": fitted.calibrator.scope,
        "calibrant.version": __version__,
    }
    _tidy(proto, metadata)
    with atomic(path) as file:
        file.write(proto.SerializeToString())
    shapes = (
        {value.name: _shape(value) for value in values} for values in (proto.graph.input, proto.graph.output)
    )
    return Exported(path, next(shapes), next(shapes), metadata)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """A model in eval mode, and afterwards every part of it in the mode that it was in."""
    if model is not None and not isinstance(model, nn.Module):
        raise InputError(f"a model to export is a torch.nn.Module, not {type(model).__name__}")
    modes = {} if model is None else {module: module.training for module in model.modules()}
    try:
        if model is not None:
            model.eval()
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _inputs(fitted: Fitted, model: nn.Module | None, example: Example | None) -> tuple[Tensor, ...]:
    """What is traced: at least two rows, since torch.export takes the number 1 for a constant."""
    if model is None:
        if example is not None:
            raise InputError("an example is for a model, and none is given; leave it out, or give model=...")
        return (torch.zeros(2, fitted.classes),)
    if example is None:
        raise InputError(
            "a model is traced with an example of its input; give example=..., such as a batch of two rows"
        )
    given: tuple[Any, ...] = example if isinstance(example, tuple) else (example,)
    if not given or not all(isinstance(each, Tensor) and each.ndim for each in given):
        raise InputError("an example is a tensor, or a tuple of tensors, whose first dimension is the rows")
    rows = {len(each) for each in given}
    if len(rows) > 1 or 0 in rows:
        raise InputError(
            f"the tensors of an example have {show(sorted(rows))} rows; give one number of rows, at least 1"
        )
    return tuple(torch.cat([each, each]) for each in given) if rows == {1} else given


def _check_logits(found: Any, fitted: Fitted, rows: int) -> None:
    if not isinstance(found, Tensor):
        raise InputError(
            f"this model gives {type(found).__name__}, and logits [N, K] are wanted; wrap it in a module whose"
            " forward returns them"
        )
    if found.shape != (rows, fitted.classes) or not found.is_floating_point():
        kind = str(found.dtype).removeprefix("torch.")
        raise InputError(
            f"the calibrator is for {fitted.classes} classes, and of {rows} rows this model makes"
            f" {kind} {list(found.shape)}; use the model whose logits it was fitted to"
        )


def _check_place(path: Path) -> None:
    """Refuse before the work what `atomic` would refuse after it."""
    if path.is_dir():
        Place(str(path)).refuse("this is a directory; give the name of a file to write")
    if not path.parent.is_dir():
        Place(str(path)).refuse(f"cannot write, because there is no directory {path.parent}; make it first")


def _needs_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise CalibrantError(
            "writing ONNX needs onnx and onnxscript, and they are not installed; pip install 'calibrant[onnx]'"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says to its own developers: of its future, and of packages that nothing here needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", category)
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _tidy(proto: Any, metadata: Mapping[str, str]) -> None:
    """Our metadata in, `rows` as the name of what is free, and out what the exporter tells of this machine.

    It notes at every node the lines and paths of the source that it was traced from.
    """
    for part in (proto, proto.graph, *_nodes(proto.graph)):
        del part.metadata_props[:]
        part.doc_string = ""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        del value.metadata_props[:]
    del proto.graph.value_info[:]
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    for key, text in metadata.items():
        proto.metadata_props.add(key=key, value=text)


def _nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph, and of the branches and loops in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _shape(value: Any) -> tuple[int | None, ...]:
    return tuple(dim.dim_value or None for dim in value.type.tensor_type.shape.dim)
