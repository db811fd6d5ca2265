"""Train-time objectives: losses, penalties on logits and predictions, and what is done to the training data."""

from calibrant.losses.adafocal import AdaFocal
from calibrant.losses.brier import Brier
from calibrant.losses.ce import CE
from calibrant.losses.dual_focal import DualFocal
from calibrant.losses.entropy import Entropy
from calibrant.losses.focal import FLSD53, Focal, InverseFocal, flsd_gamma
from calibrant.losses.label_smoothing import LabelSmoothing
from calibrant.losses.logit_norm import LogitNorm
from calibrant.losses.lp_norm import LpNorm
from calibrant.losses.mbls import MbLS
from calibrant.losses.mixup import Mixup, Pairing
from calibrant.losses.pruning import Pruning

__all__ = [
    "CE",
    "FLSD53",
    "AdaFocal",
    "Brier",
    "DualFocal",
    "Entropy",
    "Focal",
    "InverseFocal",
    "LabelSmoothing",
    "LogitNorm",
    "LpNorm",
    "MbLS",
    "Mixup",
    "Pairing",
    "Pruning",
    "flsd_gamma",
]
