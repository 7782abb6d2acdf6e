# Two commands do everything: `make demo` and `make test`. Both need only Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-slow lint format docs bench clean

demo: $(VENV)/ready
	$(BIN)/fedwcm compare --config configs/demo.toml --methods fedavg,fedcm,fedwcm --seeds 0 --out runs/demo

test: $(VENV)/ready-to-test lint
	$(BIN)/python -m pytest -q -n 2

test-slow: $(VENV)/ready-to-test
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/ready-to-test
	$(BIN)/ruff check src tests docs examples benchmarks
	$(BIN)/ruff format --check src tests docs examples benchmarks
	$(BIN)/mypy

format: $(VENV)/ready-to-test
	$(BIN)/ruff check --fix src tests docs examples benchmarks
	$(BIN)/ruff format src tests docs examples benchmarks

docs: $(VENV)/ready-to-test
	$(BIN)/python docs/make_method_pages.py
	$(BIN)/python -m docs.make_performance_page

# Installs the peers from the package index into environments of their own; takes about an hour on two idle cores.
bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.run

# torch comes first and alone: its exact version selects the build, and nothing later may replace it.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP) torch
	$(PIP) --editable '.[report]'
	touch $@

$(VENV)/ready-to-test: $(VENV)/ready
	$(PIP) --editable '.[dev,report,hub,he,flower,track]'
	touch $@

clean:
	rm -rf $(VENV) runs benchmarks/.venvs benchmarks/.cache
