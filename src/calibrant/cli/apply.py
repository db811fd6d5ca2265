"""`calibrant apply`: a calibrator from a file, for more predictions of the model that it was fitted to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli import JsonOption, app, guarded, progress
from calibrant.cli.calibrate import OutOption, OverlapOption, check_paths, of_run, tell, write


@app.command("apply")
def apply_command(
    cal: Annotated[
        Path,
        typer.Argument(metavar="CAL", readable=False, help="A calibrator that calibrate --save has kept."),
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", readable=False, help="Predictions to calibrate.")],
    out: OutOption,
    allow_overlap: OverlapOption = False,
    json: JsonOption = False,
) -> None:
    """Calibrate predictions with a calibrator from a file, and show whether it helped."""
    with guarded():
        from calibrant.calibrators.calibrate import apply_fitted
        from calibrant.core.calibrator_file import load_calibrator
        from calibrant.core.predictions import load

        file = of_run(file, "test")
        check_paths([cal, file], out, None)
        with progress("calibrating") as report:
            fitted, given = load_calibrator(cal), load(file)
            report(1, 3)
            found = apply_fitted(fitted, given, allow_overlap=allow_overlap)
            report(2, 3)
            write(found, out, None)
        tell(found, given, file, out, None, json)
