"""What tests of readers need: random images, and files as publishers pack them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Pack = Callable[[dict[str, bytes], str], Path]


def noise(rows: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Images of noise, uint8, in which no two pixels can be exchanged unseen."""
    return np.random.default_rng(seed).integers(0, 256, (rows, *shape), dtype=np.uint8)


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """A function of (files, name): the files in an archive, whose kind the suffix says, or in a folder."""

    def make(files: dict[str, bytes], name: str) -> Path:
        path = tmp_path / name
        if name.endswith(".zip"):
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for each, data in files.items():
                    archive.writestr(each, data)
        elif ".tar" in name:
            with tarfile.open(path, "w:gz" if name.endswith(".gz") else "w") as tar:
                for each, data in files.items():
                    member = tarfile.TarInfo(each)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        else:
            for each, data in files.items():
                (path / each).parent.mkdir(parents=True, exist_ok=True)
                (path / each).write_bytes(data)
        return path

    return make


@pytest.fixture(name="noise")
def noise_fixture() -> Callable[..., np.ndarray]:
    """The function `noise(rows, *shape, seed=0)`."""
    return noise
