"""Where data come from, and how they are split: the embedded dataset and a source whose true posterior is known."""

from calibrant.data.fashion_mini import FashionMini
from calibrant.data.splits import Splits, split
from calibrant.data.synthetic import Synthetic

__all__ = ["FashionMini", "Splits", "Synthetic", "split"]
