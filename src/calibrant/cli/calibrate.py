"""`calibrant calibrate`: repair a model's confidence with predictions of one split, for those of another."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli import JsonOption, app, guarded, print_json, progress

if TYPE_CHECKING:
    from calibrant.calibrators.calibrate import Calibrated
    from calibrant.core.predictions import Predictions

SHOWN = ("error", "nll", "brier", "ece(bins=15)", "smece")
"""What is shown before and after; never a calibration error alone."""

OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="OUT",
        readable=False,
        help="Where the calibrated predictions go: .npz, .parquet or .csv.",
    ),
]
OverlapOption = Annotated[
    bool,
    typer.Option(
        "--allow-overlap",
        help="Permit a fit to the rows that are scored, and mark the output as an oracle's.",
    ),
]


@app.command("calibrate")
def calibrate_command(
    fit: Annotated[
        Path,
        typer.Argument(
            metavar="FIT",
            readable=False,
            help="Predictions to fit to, such as those of the val split; of a run directory, those.",
        ),
    ],
    apply: Annotated[
        Path,
        typer.Argument(metavar="APPLY", readable=False, help="Predictions to calibrate, of another split."),
    ],
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="SPEC", help="temperature, 'temperature > histogram(bins=15)', auto, ..."
        ),
    ],
    out: OutOption,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="CAL", readable=False, help="Keep the fitted calibrator in this file."
        ),
    ] = None,
    allow_overlap: OverlapOption = False,
    json: JsonOption = False,
) -> None:
    """Fit a calibrator to FIT, apply it to APPLY, and show whether it helped."""
    with guarded():
        from calibrant.calibrators.calibrate import calibrate
        from calibrant.core.chain import calibrator
        from calibrant.core.predictions import load

        procedure = calibrator(method)
        fit, apply = of_run(fit, "val"), of_run(apply, "test")
        check_paths([fit, apply], out, save)
        with warnings_told(), progress("fitting") as report:
            first, second = load(fit), load(apply)
            report(1, 4)
            found = calibrate(first, second, procedure, allow_overlap=allow_overlap)
            report(2, 4)
            write(found, out, save)
            report(3, 4)
        for note in found.fitted.notes:
            typer.echo(note, err=True)
        tell(found, second, apply, out, save, json)


def of_run(path: Path, part: str) -> Path:
    """The predictions of one split where a run directory is given; any other path as it is."""
    inside = path / "predictions" / f"{part}.npz"
    return inside if inside.is_file() else path


def check_paths(read: list[Path], out: Path, save: Path | None) -> None:
    """Refuse, before any work, a place that cannot be written or that would replace what is read."""
    from calibrant.core.formats import extension_of
    from calibrant.core.place import Place

    extension_of(out, Place(str(out)))
    for path in (out, save):
        if path is None:
            continue
        place = Place(str(path))
        if any(each.resolve() == path.resolve() for each in read):
            place.refuse("this would replace what is read; write to another file")
        if not path.parent.is_dir():
            place.refuse(f"cannot write, because there is no directory {path.parent}; make it first")
        if path.is_dir():
            place.refuse("this is a directory; give the name of a file to write")
    if save is not None and save.resolve() == out.resolve():
        Place(str(save)).refuse("--out and --save are the same file; give each its own")


def write(found: Calibrated, out: Path, save: Path | None) -> None:
    """Both files or none: the predictions are whole under another name before the calibrator is written."""
    import os
    import secrets

    draft = out.with_name(f".{out.stem}.{secrets.token_hex(4)}{out.suffix}")
    try:
        found.predictions.save(draft)
        if save is not None:
            found.fitted.save(save)
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)


def tell(
    found: Calibrated, before: Predictions | Any, apply: Path, out: Path, save: Path | None, json: bool
) -> None:
    """What the metrics say before and after, as a table or as JSON."""
    from calibrant.core.predictions import load
    from calibrant.metrics.evaluate import evaluate

    with progress("before and after") as report:
        old = evaluate(before, SHOWN)
        report(1, 2)
        new = evaluate(load(out), SHOWN)
        if json:
            told = {"before": old.to_json(), "after": new.to_json()}
        report(2, 2)
    fitted = found.fitted
    if not json:
        from calibrant.report.calibration import print_calibration

        print_calibration(str(fitted.calibrator), old, new)
        return
    print_json(
        {
            "method": str(fitted.provenance.get("method", fitted.calibrator)),
            "calibrator": str(fitted.calibrator),
            "scope": fitted.calibrator.scope,
            "fit": fitted.provenance.get("fit"),
            "notes": list(fitted.notes),
            "oracle": found.oracle,
            "apply": str(apply),
            "out": str(out),
            "save": None if save is None else str(save),
            **told,
        }
    )


@contextmanager
def warnings_told() -> Iterator[None]:
    """A warning about a fit becomes one line on standard error, said once."""
    from calibrant.core.calibration import CalibrationWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        yield
    lines = dict.fromkeys(
        str(each.message) for each in caught if issubclass(each.category, CalibrationWarning)
    )
    for line in lines:
        typer.echo(f"calibrant: warning: {line}", err=True)
    for each in caught:
        if not issubclass(each.category, CalibrationWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
