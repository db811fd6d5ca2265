"""Maps from logits to better logits, or to a better confidence of the predicted class, fitted after training."""

from calibrant.calibrators.identity import Identity
from calibrant.calibrators.temperature import Temperature

__all__ = ["Identity", "Temperature"]
