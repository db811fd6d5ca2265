r"""How far a fitted map is trusted: the share of it that rows which it has not seen want, beside temperature scaling.

$p' = w\,h(p) + (1 - w)\,p_T$ with the w of the smallest log loss, where each half of the rows is judged by the map
that was learned from the other. The loss is convex in w. One row more is counted for $p_T$, so that w < 1: nothing gets
less than 1/(N + 1) of what temperature scaling gives it. A gain within one standard error of 0 is none: then w = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.core.calibration import State
from calibrant.core.rows import row_keys

_ENOUGH = 1 << 22  # scores on which a share is judged
_ROUNDS = 30  # halvings of an interval of length 1
_UNITS = 1_000_000  # a share is a whole number of millionths: what is beyond depends on the order of a sum

Fit = Callable[[Tensor, Tensor], dict[str, Tensor]]
Vector = Callable[[State, Tensor, Tensor], Tensor]


def learned_share(fit: Fit, vector: Vector, logits: Tensor, labels: Tensor, temperature: float) -> float:
    """The best w; `vector` gives h of probabilities [N, K]. Large fits are judged on some of their rows."""
    keys = row_keys(logits, labels)
    most = max(1, _ENOUGH // logits.shape[1] // 2)
    pairs: list[tuple[Tensor, Tensor]] = []
    for side in (0, 1):
        judged, learned = (keys & 1) == side, (keys & 1) != side
        if not bool(judged.any()) or not bool(learned.any()):
            return 0.0
        state = {name: t.to(logits.device) for name, t in fit(logits[learned], labels[learned]).items()}
        rows = judged.nonzero()[:, 0]
        if len(rows) > most:
            rows = rows[keys[rows].argsort()[:most]]
        some, true = logits[rows], labels[rows, None]
        found, scaled = vector(state, some.softmax(1), some), (some / temperature).softmax(1)
        pairs.append((found.gather(1, true)[:, 0], scaled.gather(1, true)[:, 0]))
    h, p = (torch.cat(both).double().clamp(min=1e-300) for both in zip(*pairs, strict=True))
    share = best_share(h, p, len(labels))
    gain = ((p + share * (h - p)) / p).log()
    return share if float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5 else 0.0


def best_share(h: Tensor, p: Tensor, rows: int) -> float:
    """The w in [0, 1) that maximises the mean of ln(w h + (1 - w) p), one row more than `rows` counted for p."""
    low, high = 0.0, 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        slope = float(((h - p) / (p + middle * (h - p))).mean()) - 1 / (rows * (1 - middle))
        low, high = (middle, high) if slope > 0 else (low, middle)
    return math.floor(low * _UNITS) / _UNITS
