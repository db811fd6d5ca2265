"""Studies: a question as one TOML file, its grid of runs, and an answer with seeds, intervals and verdicts."""

from calibrant.study.grid import Grid, grid
from calibrant.study.plan import Study
from calibrant.study.reading import load, read, shipped
from calibrant.study.run import Outcome, Progress, run

__all__ = ["Grid", "Outcome", "Progress", "Study", "grid", "load", "read", "run", "shipped"]
