"""An 8-layer convolutional network for texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.core.errors import SpecError
from calibrant.core.registry import register
from calibrant.core.samples import Classifier, InputKind, InputShape
from calibrant.models.network import Network, check_at_least

PAIRS = 3
SCALE = 0.1
"""The standard deviation of a fresh embedding: small, so that its first steps count."""


@register("models", "text_cnn", paper="johnson2017")
@dataclass(frozen=True)
class TextCNN(Network):
    r"""An 8-layer 1-D CNN for texts: an embedding, three residual pairs of convolutions, and a linear head.

    It is a pyramid: $x \leftarrow x + n(C_2(\sigma(n(C_1(x)))))$ with layer norm n over the channels of a token, ReLU
    $\sigma$, kernels of three tokens, and the mean of two neighbours between pairs, which halves the text. The features
    are the mean over what is left, in batch norm. The second n of a pair starts with gain 0, so that training starts
    from a bag of words. In training each token is lost with probability `drop_words`, as if it were padding, and each
    feature with `dropout`. Padding counts nowhere: a text padded further has the same logits up to rounding, and an
    empty one those of no word. On few texts with `ce` it is very overconfident.
    *Deviation:* the 8-layer CNN of document 002 is in an appendix that is missing; this one is ours, after Johnson and
    Zhang's pyramid, which embeds regions, pools by maxima and has no norm.
    """

    width: int = 64
    drop_words: float = 0.4
    dropout: float = 0.5
    reads: ClassVar[tuple[InputKind, ...]] = ("text",)

    def __post_init__(self) -> None:
        check_at_least(1, width=self.width)
        for name in ("drop_words", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise SpecError(f"{name} is a probability below 1, not {getattr(self, name):g}")

    def build(self, shape: InputShape, classes: int) -> Classifier:
        return Pyramid(shape.vocabulary, self.width, self.drop_words, self.dropout, classes)


class Pair(nn.Module):
    """x plus two convolutions of it, with zeros where there is no token; at first x alone.

    A text is convolved as an image of height 1, channels last: so it lies in memory already, and nothing is copied.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, (1, 3), padding=(0, 1)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        nn.init.zeros_(self.norms[1].weight)  # type: ignore[arg-type]
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def convolved(self, number: int, x: Tensor) -> Tensor:
        image = x.transpose(1, 2)[:, :, None]
        found: Tensor = self.norms[number](self.convolutions[number](image)[:, :, 0].transpose(1, 2))
        return found

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        inner = F.relu(self.convolved(0, x)) * there
        return (x + self.convolved(1, inner)) * there


class Pyramid(Classifier):
    """Embedding, pairs of convolutions, mean, head. Activations are [N, L, width], the mask of tokens is [N, L, 1]."""

    def __init__(self, vocabulary: int, width: int, drop_words: float, dropout: float, classes: int) -> None:
        super().__init__()
        self.drop_words, self.dropout = drop_words, dropout
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.mul_(SCALE)
        self.pairs = nn.ModuleList(Pair(width) for _ in range(PAIRS))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)

    def features(self, inputs: Tensor) -> Tensor:
        there = (inputs != 0)[:, :, None].float()
        if self.training and self.drop_words:
            there = there * (torch.rand_like(there) >= self.drop_words)
        x = self.embedding(inputs) * there
        for place, pair in enumerate(self.pairs):
            if place:
                x, there = halved(x, there)
            x = pair(x, there)
        mean = x.sum(1) / there.sum(1).clamp(min=1)
        return F.dropout(self.norm(mean), self.dropout, self.training)


def halved(x: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over each two neighbours, of those that are there."""
    if x.shape[1] % 2:
        x, there = F.pad(x, (0, 0, 0, 1)), F.pad(there, (0, 0, 0, 1))
    count = there[:, ::2] + there[:, 1::2]
    return (x[:, ::2] + x[:, 1::2]) / count.clamp(min=1), count.clamp(max=1)
