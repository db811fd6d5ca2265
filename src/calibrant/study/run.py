"""Running a study: what is missing is executed and filed, what is there is left alone, and all of it is judged.

plan -> refuse what cannot be -> the cells without a file -> one task a run -> file each cell -> tables and verdicts
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from calibrant.core.errors import InputError
from calibrant.core.registry import name_of
from calibrant.core.samples import Importable
from calibrant.data import store as data_store
from calibrant.study.answer import answer
from calibrant.study.executor import Event, Executor, LocalPool
from calibrant.study.grid import Cell, Grid, Point, grid
from calibrant.study.plan import Study
from calibrant.study.reading import load
from calibrant.study.store import Record, Store, opened_store
from calibrant.study.tables import csv_text, markdown, tex
from calibrant.study.work import Task, failed
from calibrant.train.loop import pick_device
from calibrant.train.reporting import Report

State = Literal["waiting", "training", "done", "failed"]


@dataclass(frozen=True)
class Progress:
    """Where one run of a study stands, and how many of those that had to be done are over."""

    point: Point
    state: State
    report: Report | None
    records: Mapping[str, Record]
    over: int
    total: int


@dataclass(frozen=True)
class Outcome:
    """A study that has been run: its grid, its directory, what every cell holds, and how many were executed now."""

    grid: Grid
    directory: Path
    records: Mapping[str, Record]
    executed: int
    document: dict[str, Any]

    @property
    def failures(self) -> list[tuple[Cell, str]]:
        """The cells without numbers, each with its error."""
        found = ((cell, self.records[cell.key].error) for cell in self.grid.cells)
        return [(cell, error) for cell, error in found if error is not None]


def run(
    study: Study | Grid | str | Path,
    out: Path | str | None = None,
    *,
    workers: int | None = None,
    settings: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    data_dir: Path | None = None,
    device: str = "auto",
    report: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
) -> Outcome:
    """Run a study into a directory (`studies/NAME` by default); what is done there already is only read.

    Workers are processes, one for each GPU or core unless told otherwise. A script of your own that calls this guards
    itself with `if __name__ == "__main__"`, because each process reads it.
    """
    planned = _planned(study, settings)
    where = Path(out) if out is not None else Path("studies") / planned.study.name
    devices = _devices(device)
    with opened_store(where, planned.study.name) as store:
        known = {cell.key: store.read(cell) for cell in planned.cells}
        due = [cell for cell in planned.cells if _is_due(known[cell.key], retry_failed)]
        _check_data(due, data_dir)
        if due:
            pool = executor or LocalPool(_workers(workers, devices), devices)
            _execute(pool, planned, due, known, store, data_dir, report)
        records = {key: record for key, record in known.items() if record is not None}
        document = answer(planned, records)
        store.put("results.csv", csv_text(planned, records))
        store.put("tables.md", markdown(document))
        store.put("tables.tex", tex(document))
        store.put("answer.json", _json(document))
    return Outcome(planned, where, records, len(due), document)


def missing(planned: Grid, out: Path) -> list[Cell]:
    """The cells of a grid that a directory does not have yet."""
    store = Store(out)
    return [cell for cell in planned.cells if store.read(cell) is None]


def workers_here(device: str = "auto") -> int:
    """How many workers there are unless told otherwise."""
    return _workers(None, _devices(device))


def _planned(study: Study | Grid | str | Path, settings: Mapping[str, str] | None) -> Grid:
    if isinstance(study, Grid):
        return study
    return grid(study if isinstance(study, Study) else load(study), settings)


def _is_due(record: Record | None, retry_failed: bool) -> bool:
    return record is None or (retry_failed and record.error is not None)


def _execute(
    pool: Executor,
    planned: Grid,
    due: Sequence[Cell],
    known: dict[str, Record | None],
    store: Store,
    data_dir: Path | None,
    report: Callable[[Progress], None] | None,
) -> None:
    """One task for each run that has cells to be done; the records of a task are filed as soon as they are here."""
    wanted: dict[str, list[Cell]] = {}
    for cell in due:
        wanted.setdefault(cell.point.run.id, []).append(cell)
    tell = report or (lambda progress: None)
    for cells in wanted.values():
        point = cells[0].point
        tell(Progress(point, "waiting", None, {}, 0, len(wanted)))
        pool.submit(point.run.id, _task(planned, cells, store, data_dir))
    over = 0
    try:
        for event in pool.events():
            cells = wanted[event.key]
            records: dict[str, Record] = {}
            state: State = "training"
            if event.last:
                over += 1
                records = _records(event, cells)
                for cell in cells:
                    store.write(cell, records[cell.key])
                known.update(records)
                state = "failed" if any(record.error for record in records.values()) else "done"
            named = {cell.calibrator: records[cell.key] for cell in cells if records}
            tell(Progress(cells[0].point, state, event.report, named, over, len(wanted)))
    finally:
        pool.cancel()


def _task(planned: Grid, cells: Sequence[Cell], store: Store, data_dir: Path | None) -> Task:
    run = cells[0].point.run
    specs = tuple((cell.key, planned.study.calibrators[cell.calibrator]) for cell in cells)
    return Task(run, store.run_directory(run.id).absolute(), data_dir, specs, planned.study.metrics)


def _records(event: Event, cells: Sequence[Cell]) -> dict[str, Record]:
    if event.records is not None:
        return dict(event.records)
    return {cell.key: failed(event.error or "it ended without a word") for cell in cells}


def _check_data(due: Sequence[Cell], data_dir: Path | None) -> None:
    """Refuse before anything runs what would fail for want of data."""
    for dataset in dict.fromkeys(cell.point.run.dataset for cell in due):
        if isinstance(dataset, Importable) and data_store.look(name_of(dataset), data_dir) is None:
            data_store.load(name_of(dataset), data_dir)  # which says how to get it


def _devices(name: str) -> list[str]:
    """Every GPU if there are any and none is named; else the one device."""
    device = pick_device(name)
    if name in ("auto", "cuda") and device.type == "cuda":
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(device)]


def _workers(asked: int | None, devices: Sequence[str]) -> int:
    if asked is not None:
        if asked < 1:
            raise InputError(f"workers is the number of processes, at least 1, not {asked}")
        return asked
    if devices[0].startswith("cuda"):
        return len(devices)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _json(document: Any) -> str:
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
