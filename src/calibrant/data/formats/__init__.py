"""The formats in which datasets are published, one a module: from files to arrays, with nothing run on the way."""
