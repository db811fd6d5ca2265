"""`calibrant export`: a calibrator from a file, as an ONNX file that runs without Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli import JsonOption, app, guarded, print_json


@app.command("export")
def export_command(
    cal: Annotated[
        Path,
        typer.Argument(metavar="CAL", readable=False, help="A calibrator that calibrate --save has kept."),
    ],
    onnx: Annotated[
        Path,
        typer.Option("--onnx", metavar="OUT", readable=False, help="Where the ONNX file goes."),
    ],
    json: JsonOption = False,
) -> None:
    """Write a calibrator as an ONNX file: logits of any number of rows in, calibrated ones out."""
    with guarded():
        from calibrant.core.calibrator_file import load_calibrator
        from calibrant.core.place import Place

        fitted = load_calibrator(cal)
        if cal.resolve() == onnx.resolve():
            Place(str(onnx)).refuse("this would replace what is read; write to another file")
        from calibrant.interop.export import to_onnx

        made = to_onnx(fitted, onnx)
        if json:
            told = {name.removeprefix("calibrant."): text for name, text in made.metadata.items()}
            ends = {"inputs": made.inputs, "outputs": made.outputs}
            print_json({**told, **ends, "classes": fitted.classes, "source": str(cal), "onnx": str(onnx)})
            return
        typer.echo(f"{fitted.calibrator}")
        for word, ends_of in (("takes", made.inputs), ("gives", made.outputs)):
            for name, shape in ends_of.items():
                shown = ", ".join("N" if size is None else str(size) for size in shape)
                typer.echo(f"{onnx} {word} {name} [{shown}]")
