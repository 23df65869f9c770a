# Every target sets up all it needs in .venv, and costs nothing to call again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready

.PHONY: run test fuzz lint bench docs clean
.DEFAULT_GOAL := run

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY)  ## train, evaluate, sample and report on scikit-learn's digits; writes runs/digits-<time>/report.html
	$(BIN)/dmb quickstart

test: $(READY)  ## all tests, doctests and documentation snippets
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist worksteal

fuzz: $(READY)  ## CASES (default: 10,000) commands on spoilt files, settings and command lines: half an hour on two idle cores; then 200 kills of training runs
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/engine.py $(or $(CASES),10000)
	$(BIN)/python tests/fuzz/kills.py

lint: $(READY)  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)  ## every benchmark; each prints ratios measured side by side in one run
	for benchmark in cost variance known_entropy conditionals; do $(BIN)/python benchmarks/$$benchmark.py; done

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS_READY)  ## the documentation as a site, in docs/_build/html; runs the gallery, checks links, allows no warning
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -d docs/_build/doctrees docs docs/_build/html
	@echo docs/_build/html/index.html

clean:
	rm -rf $(VENV) runs docs/_build
