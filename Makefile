# Two commands do everything: `make demo` and `make test`. Both need only make and Python 3.11, 3.12 or 3.13; of several,
# `make test PYTHON=python3.13` chooses one for a new .venv.
PYTHON ?= $(firstword $(foreach version,3.11 3.12 3.13,$(shell command -v python$(version) 2>/dev/null)) python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-slow lint format docs tutorials site dist bench mutations clean

demo: $(VENV)/ready
	$(BIN)/fedwcm compare --config configs/demo.toml --methods fedavg,fedcm,fedwcm,fedwcm+longtail --seeds 0-9 --jobs 2 --out runs/demo

test: $(VENV)/ready-to-test lint
	$(BIN)/python -m pytest -q -n 2

test-slow: $(VENV)/ready-to-test
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/ready-to-test
	$(BIN)/ruff check src tests tools examples benchmarks tutorials
	$(BIN)/ruff format --check src tests tools examples benchmarks tutorials
	$(BIN)/mypy

format: $(VENV)/ready-to-test
	$(BIN)/ruff check --fix src tests tools examples benchmarks tutorials
	$(BIN)/ruff format src tests tools examples benchmarks tutorials

docs: $(VENV)/ready-to-test
	$(BIN)/python -m tools.make_method_pages
	$(BIN)/python -m tools.make_options
	$(BIN)/python -m tools.make_performance_page

# Executes the tutorials and stores their outputs in them.
tutorials: $(VENV)/ready-to-test
	$(BIN)/python -m tools.execute_tutorials

# The documentation as a web site, in site/index.html. A broken link, or a docstring that cannot be parsed, is an error.
site: $(VENV)/ready-to-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# A wheel and a source distribution, in dist/.
dist: $(VENV)/ready-to-test
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

# Installs the peers from the package index into environments of their own; takes about an hour on two idle cores.
bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.run

# Changes the source a little, thousands of times, and counts the changes that a test notices: hours. Resumable.
mutations: $(VENV)/ready-to-test
	$(BIN)/python -m tools.mutate

# torch comes first and alone: its exact version selects the build, and nothing later may replace it.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP) torch
	$(PIP) --editable '.[report]'
	touch $@

$(VENV)/ready-to-test: $(VENV)/ready
	$(PIP) --editable '.[dev,docs,report,export,hub,he,flower,track,tune]'
	touch $@

clean:
	rm -rf $(VENV) runs site dist benchmarks/.venvs benchmarks/.cache
