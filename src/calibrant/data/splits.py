"""The training part of a published dataset, cut into train, val and meta by a seed that is not the training seed."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch

from calibrant.core.errors import SpecError
from calibrant.core.samples import Published, Samples

_SCHEME = re.compile(r"[1-9]\d{0,8}(:[1-9]\d{0,8}){1,2}")


@dataclass(frozen=True, eq=False)
class Splits:
    """What training sees: `train` moves the weights, `val` chooses and calibrates, `meta` moves a meta-regulariser.

    `meta` is empty in a scheme of two parts. `test` is the published test set, untouched.
    """

    train: Samples
    val: Samples
    meta: Samples
    test: Samples


def split(published: Published, scheme: str = "8:1:1", seed: int = 0, limit: int | None = None) -> Splits:
    """Train, val and meta in the proportions of the scheme, drawn by one permutation that depends on the seed alone.

    The permutation is laid out as val, train, meta. So with one seed "8:1:1" and "9:1" have the same val, the second's
    train is the first's train and meta together, and its first 80 %, `limit=40000` of 50,000, are the first's train:
    budgets can be compared row by row. `limit` keeps the first rows of train and leaves val and meta as they are.
    Rows are not stratified, as in the papers: the share of a class in val scatters as in a sample.
    """
    train, val, _ = sizes(len(published.train), scheme)
    if limit is not None and not 1 <= limit <= train:
        raise SpecError(
            f"a limit of {limit:,} rows does not fit the {train:,} training rows of {published.name} at {scheme}; "
            f"give 1 to {train:,}"
        )
    if seed < 0:
        raise SpecError(f"a split seed is 0 or more, not {seed}")
    rows = torch.from_numpy(np.random.default_rng(seed).permutation(len(published.train)))
    return Splits(
        train=published.train.take(rows[val : val + (train if limit is None else limit)]),
        val=published.train.take(rows[:val]),
        meta=published.train.take(rows[val + train :]),
        test=published.test,
    )


def sizes(rows: int, scheme: str) -> tuple[int, int, int]:
    """How many rows are train, val and meta: val and meta are rounded down, the remainder is train."""
    if not _SCHEME.fullmatch(scheme):
        raise SpecError(
            f"no split scheme {scheme!r}; write train:val or train:val:meta in whole numbers above 0, "
            "such as '9:1' or '8:1:1'"
        )
    parts = [int(part) for part in scheme.split(":")]
    val, meta = (rows * part // sum(parts) for part in (parts[1], parts[2] if len(parts) == 3 else 0))
    if not val or (len(parts) == 3 and not meta) or val + meta == rows:
        raise SpecError(
            f"{rows:,} row{'s are' * (rows != 1) or ' is'} too few for the scheme {scheme}: a part would be empty"
        )
    return rows - val - meta, val, meta
