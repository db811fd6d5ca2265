"""Maps from logits to better logits, or to a better confidence of the predicted class, fitted after training."""

from calibrant.calibrators.attended import Attended
from calibrant.calibrators.auto import Auto
from calibrant.calibrators.bbq import BBQ
from calibrant.calibrators.beta import Beta
from calibrant.calibrators.dirichlet import Dirichlet
from calibrant.calibrators.ets import ETS
from calibrant.calibrators.histogram import Histogram
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.imax import IMax
from calibrant.calibrators.iop import IOP
from calibrant.calibrators.irm import IRM
from calibrant.calibrators.isotonic import Isotonic
from calibrant.calibrators.matrix import Matrix
from calibrant.calibrators.platt import Platt
from calibrant.calibrators.scaling_binning import ScalingBinning
from calibrant.calibrators.spline import Spline
from calibrant.calibrators.structured import Structured
from calibrant.calibrators.temperature import Temperature
from calibrant.calibrators.vector import Vector

__all__ = [
    "BBQ",
    "ETS",
    "IOP",
    "IRM",
    "Attended",
    "Auto",
    "Beta",
    "Dirichlet",
    "Histogram",
    "IMax",
    "Identity",
    "Isotonic",
    "Matrix",
    "Platt",
    "ScalingBinning",
    "Spline",
    "Structured",
    "Temperature",
    "Vector",
]
