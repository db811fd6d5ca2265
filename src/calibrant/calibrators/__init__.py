"""Maps from logits to better logits, or to a better confidence of the predicted class, fitted after training."""

from calibrant.calibrators.attended import Attended
from calibrant.calibrators.beta import Beta
from calibrant.calibrators.dirichlet import Dirichlet
from calibrant.calibrators.ets import ETS
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.matrix import Matrix
from calibrant.calibrators.platt import Platt
from calibrant.calibrators.structured import Structured
from calibrant.calibrators.temperature import Temperature
from calibrant.calibrators.vector import Vector

__all__ = [
    "ETS",
    "Attended",
    "Beta",
    "Dirichlet",
    "Identity",
    "Matrix",
    "Platt",
    "Structured",
    "Temperature",
    "Vector",
]
