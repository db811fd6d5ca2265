"""What is learned about a loss while a network trains, and the hypergradient that it is learned by."""

from calibrant.core.meta import Head, MetaRegularizer, Phi, Rows
from calibrant.core.spec import build
from calibrant.meta.gamma_net import GammaNet
from calibrant.meta.hypergradient import Hypergradient, hypergradient
from calibrant.meta.label_smoothing import LearnedLabelSmoothing
from calibrant.meta.lookahead import SGD, AdamW, Descent, descent
from calibrant.meta.move import Memory, moved, remember
from calibrant.meta.weight_decay import LearnedWeightDecay

__all__ = [
    "SGD",
    "AdamW",
    "Descent",
    "GammaNet",
    "Head",
    "Hypergradient",
    "LearnedLabelSmoothing",
    "LearnedWeightDecay",
    "Memory",
    "MetaRegularizer",
    "Phi",
    "Rows",
    "descent",
    "hypergradient",
    "meta_regularizer",
    "moved",
    "remember",
]


def meta_regularizer(text: str) -> MetaRegularizer:
    """A meta-regulariser from a spec such as `gamma_net(bound=5)`."""
    made: MetaRegularizer = build(text, "meta")
    return made
