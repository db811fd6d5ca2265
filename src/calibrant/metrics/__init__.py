"""Calibration errors, proper scores and rankings, each with an interval and, where it applies, its null."""

from calibrant.metrics.binned import ACE, ECE, MCE, RMSCE
from calibrant.metrics.classwise import ClasswiseECE
from calibrant.metrics.debiased import DebiasedECE
from calibrant.metrics.kde import KdeECE
from calibrant.metrics.proper import NLL, Brier, Error, Overconfidence
from calibrant.metrics.ranking import AURC, AUROC
from calibrant.metrics.sece import SECE
from calibrant.metrics.smece import SmECE
from calibrant.metrics.top_label import TopLabelECE

__all__ = [
    "ACE",
    "AURC",
    "AUROC",
    "ECE",
    "MCE",
    "NLL",
    "RMSCE",
    "SECE",
    "Brier",
    "ClasswiseECE",
    "DebiasedECE",
    "Error",
    "KdeECE",
    "Overconfidence",
    "SmECE",
    "TopLabelECE",
]
