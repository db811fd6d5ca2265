"""What a dataset hands over and what a network is built for: rows with ids, and the shape of one input.

Every dataset is a frozen dataclass with `load(data_dir) -> Published`, every network one with
`make(shape, classes) -> Module`; the training loop knows no more of either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

InputKind = Literal["image", "text", "vector"]


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows of a dataset. Inputs are as stored: images uint8 [N, C, H, W], texts int32 token ids [N, L] padded with 0,
    vectors float32 [N, D]. An id names its row for good, whatever the split: two sets overlap exactly if ids do."""

    inputs: Tensor
    labels: Tensor
    ids: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Samples:
        """Some of the rows, in the order given."""
        return Samples(self.inputs[rows], self.labels[rows], self.ids[rows])


@dataclass(frozen=True)
class InputShape:
    """One input: (C, H, W) of an image, (L,) of a text with its number of different tokens, (D,) of a vector."""

    kind: InputKind
    size: tuple[int, ...]
    vocabulary: int = 0


@dataclass(frozen=True, eq=False)
class Published:
    """A dataset as it is published: what may be split for training, the test set, and the names of the classes."""

    name: str
    classes: tuple[str, ...]
    shape: InputShape
    train: Samples
    test: Samples


@runtime_checkable
class Dataset(Protocol):
    """A source of samples; `data_dir` is where fetched and imported files lie, None for the user's default place."""

    def load(self, data_dir: Path | None = None) -> Published: ...


@dataclass(frozen=True)
class Download:
    """A published file: its address, and what its bytes hash to: "md5:..." or "sha256:...", "" if nobody says."""

    url: str
    checksum: str = ""

    @property
    def name(self) -> str:
        """The name under which it is kept: the last part of the address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, eq=False)
class Stock:
    """A dataset as the data directory holds it: arrays of numbers, `y_train` and `y_test` among them, and class names.

    Images are `x_train`, `x_test`, uint8 [N, C, H, W]; another kind of data names its arrays as it likes.
    """

    arrays: Mapping[str, np.ndarray[Any, Any]]
    classes: tuple[str, ...]


@runtime_checkable
class Importable(Protocol):
    """A dataset that is published in files of others: converted once, then loaded from one file of ours.

    `read` takes what a person has: a file, an archive (which is not unpacked before) or a folder. After a fetch that
    is the one file of `downloads`, or the folder of them if there are several.
    """

    @property
    def downloads(self) -> tuple[Download, ...]: ...

    def read(self, source: Path) -> Stock: ...

    def load(self, data_dir: Path | None = None) -> Published: ...


class Classifier(nn.Module, ABC):
    """The interface of a network: logits are the head of the features, so that the head can be looked ahead alone."""

    head: nn.Linear

    @abstractmethod
    def features(self, inputs: Tensor) -> Tensor:
        """The penultimate layer [N, d]."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(inputs))
        return logits


@runtime_checkable
class Model(Protocol):
    """A network by name: freshly initialised from torch's global generator."""

    def make(self, shape: InputShape, classes: int) -> nn.Module: ...
