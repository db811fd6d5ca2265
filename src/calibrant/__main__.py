"""`python -m calibrant` is the same as `calibrant`."""

from calibrant.cli import app

app()
