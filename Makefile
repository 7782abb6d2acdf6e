# Two commands do everything: `make demo` and `make test`. Both need only Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow lint format clean

demo: $(VENV)/ready
	$(BIN)/fedwcm compare --config configs/demo.toml --methods fedavg,fedcm,fedwcm --seeds 0 --out runs/demo

test: $(VENV)/ready lint
	$(BIN)/python -m pytest -q

test-slow: $(VENV)/ready
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/ready
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

format: $(VENV)/ready
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

# torch comes first and alone: its exact version selects the build, and nothing later may replace it.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,report]'
	touch $@

clean:
	rm -rf $(VENV) runs
