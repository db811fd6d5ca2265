# Everything that is done in this repository, by one word each. All of it works in .venv, which is made once.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench
DEMO := build/demo
WORKERS ?= 2
CODE := src tests $(wildcard benchmarks) docs

# The first Python on the path that is new enough; `make setup PYTHON=python3.12` decides otherwise.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check imports format format-check lint types docs examples bench coverage clean

help: ## say what there is
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(READY) ## make .venv with all that working here needs (PYTHON=python3.12 picks the interpreter)

$(READY): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ] || ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "Calibrant needs Python 3.11 or newer, and '$(or $(PYTHON),python3)' is not that:" \
			"install one, or name it, as in 'make setup PYTHON=python3.12'." >&2; exit 1; fi
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) -e '.[dev]'
	@touch $@

$(BENCH_READY): $(READY)
	$(PIP) -e '.[dev,bench]'
	@touch $@

demo: $(READY) ## train four losses on the embedded images, calibrate each, and compare
	$(BIN)/calibrant demo --out $(DEMO)

test: $(READY) ## run the tests, but for those marked slow (WORKERS=2 processes of one thread each)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow'

test-all: $(READY) ## run every test
	$(BIN)/python -m pytest

check: format-check lint types imports test ## all that has to be green before a commit: what CI runs

imports: $(READY) ## check the direction of imports between the rooms
	$(BIN)/python -m pytest -q tests/architecture/test_imports.py

format: $(READY) ## rewrite the code in the one format, and mend what lint can mend
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

format-check: $(READY)
	$(BIN)/ruff format --check $(CODE)

lint: $(READY) ## look for mistakes and banned calls
	$(BIN)/ruff check $(CODE)

types: $(READY) ## check types, strictly
	$(BIN)/mypy

docs: $(READY) ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

examples: $(READY) ## write the output of today's code into the examples of the README and the documentation
	$(BIN)/python tests/docs/test_readme.py

bench: $(BENCH_READY) ## measure speed and memory against peers, and rewrite the tables of the docs
	$(BIN)/python benchmarks/metrics.py

coverage: $(READY) ## measure how often the intervals cover the truth, and rewrite that table of the docs
	$(BIN)/python benchmarks/coverage.py

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
