"""One training loop for every loss, network and dataset; a run is a frozen value, its directory what came of it."""

from calibrant.train.loop import Trained, train
from calibrant.train.recipe import RECIPES, Recipe, recipe
from calibrant.train.reporting import Report
from calibrant.train.run import Run

__all__ = ["RECIPES", "Recipe", "Report", "Run", "Trained", "recipe", "train"]
