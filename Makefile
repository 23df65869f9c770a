# Every target sets up all it needs in .venv, and costs nothing to call again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test lint bench clean
.DEFAULT_GOAL := run

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: $(READY)  ## Algorithm 1 with exact phases on a small state space; writes runs/exact_bridge.png
	$(BIN)/python examples/exact_bridge.py

test: $(READY)  ## all tests, doctests and documentation snippets
	$(BIN)/python -m pytest -q -n auto

lint: $(READY)  ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)  ## every benchmark; each prints ratios measured side by side in one run
	for benchmark in process step bound; do $(BIN)/python benchmarks/$$benchmark.py; done

clean:
	rm -rf $(VENV) runs
