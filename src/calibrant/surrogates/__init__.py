"""Differentiable calibration errors of a batch: each is a penalty, a meta-objective and a metric."""

from calibrant.surrogates.avuc import AvUC, SoftAvUC
from calibrant.surrogates.cpc import CPC
from calibrant.surrogates.dece import DECE
from calibrant.surrogates.huber import Huber
from calibrant.surrogates.kde import KdeECE
from calibrant.surrogates.mdca import MDCA
from calibrant.surrogates.mmce import MMCE, WeightedMMCE
from calibrant.surrogates.sece import SECE
from calibrant.surrogates.soft_binned import SoftBinnedECE

__all__ = [
    "CPC",
    "DECE",
    "MDCA",
    "MMCE",
    "SECE",
    "AvUC",
    "Huber",
    "KdeECE",
    "SoftAvUC",
    "SoftBinnedECE",
    "WeightedMMCE",
]
