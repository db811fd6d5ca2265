"""A run directory: who may write it, what is in it, and when it is done.

    run.toml  env.json  history.jsonl  predictions/{val,test,meta}.npz  learned.npz  weights.safetensors  DONE

DONE is written last. Until then the directory also holds a checkpoint, and a lock that the system lets go when the
process ends, however it ends.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant import __version__
from calibrant.core.files import atomic, lock
from calibrant.core.place import Place
from calibrant.train.run import Run, differences, read_run, write_run


@contextmanager
def claimed(directory: Path, run: Run, *, resume: bool) -> Iterator[bool]:
    """The directory for this run alone; whether the run is done already.

    Another run's directory is refused with the difference, an unfinished one of this run unless it is to be resumed;
    where no epoch is done yet there is nothing to lose, and nothing is refused.
    """
    place = Place(str(directory))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        place.refuse("this is a file; give the name of a directory")
    except OSError as error:
        place.refuse(f"cannot make this directory: {error.strerror or error}")
    with _locked(directory):
        if (directory / "run.toml").exists():
            other, begun = read_run(directory), _begun(directory)
            if other.id != run.id and begun:
                place.refuse(
                    "another run lies here ("
                    + "; ".join(differences(other, run))
                    + "); train into another directory"
                )
            if (directory / "DONE").exists():
                yield True
                return
            if begun and not resume:
                place.refuse("this run was begun here and is not done; add --resume to go on with it")
        elif any(path.name != ".lock" for path in directory.iterdir()):
            place.refuse("this directory is not empty and holds no run; give a new one")
        write_run(directory, run)
        yield False


def _begun(directory: Path) -> bool:
    """Whether an epoch of the run that lies here is done; a run that was refused has none and holds no place."""
    history = directory / "history.jsonl"
    return (directory / "DONE").exists() or (history.exists() and history.stat().st_size > 0)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        file = (directory / ".lock").open("w")
    except OSError as error:
        Place(str(directory)).refuse(f"cannot write into this directory: {error.strerror or error}")
    with file:
        lock(file, Place(str(directory)), "another process is training here; wait for it, or stop it")
        yield


def write_json(path: Path, document: Any) -> None:
    """One JSON document, whole or not there."""
    with atomic(path) as file:
        file.write((json.dumps(document, sort_keys=True, indent=2, allow_nan=False) + "\n").encode())


def write_history(directory: Path, history: list[dict[str, Any]]) -> None:
    """All lines of history.jsonl, one an epoch."""
    with atomic(directory / "history.jsonl") as file:
        for line in history:
            file.write(_line(line).encode())


def add_history(directory: Path, line: Mapping[str, Any]) -> None:
    """One more epoch, to be read while training goes on."""
    with (directory / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write(_line(line))


def _line(line: Mapping[str, Any]) -> str:
    return json.dumps(line, sort_keys=True, allow_nan=False) + "\n"


def read_history(directory: Path) -> list[dict[str, Any]]:
    """The epochs of a run."""
    path = directory / "history.jsonl"
    if not path.is_file():
        Place(str(directory)).refuse("it has no history.jsonl; is this a run directory?")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """A plain npz, whole or not there."""
    with atomic(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def environment(device: torch.device, **more: Any) -> dict[str, Any]:
    """What a result may depend on that is not part of the run."""
    found: dict[str, Any] = {
        "calibrant": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "device": device.type,
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {**found, **more}
