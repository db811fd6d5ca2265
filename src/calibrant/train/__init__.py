"""One training loop for every loss, network and dataset; a run is a frozen value, its directory what came of it.

`calibrant.train(Run(...))` trains: the package has the name of its one verb, and can be called by it.
"""

import sys
from types import ModuleType
from typing import Any

from calibrant.train.loop import Trained, train
from calibrant.train.recipe import RECIPES, Recipe, recipe
from calibrant.train.reporting import Report
from calibrant.train.run import Run

__all__ = ["RECIPES", "Recipe", "Report", "Run", "Trained", "recipe", "train"]


class _Verb(ModuleType):
    """A module that is called as the function of its name."""

    def __call__(self, *args: Any, **settings: Any) -> Trained:
        return train(*args, **settings)


sys.modules[__name__].__class__ = _Verb
