"""Where data come from; for now a source of predictions whose true posterior is known."""

from calibrant.data.synthetic import Synthetic

__all__ = ["Synthetic"]
