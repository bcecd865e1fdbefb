# Every target sets up what it needs: a fresh clone and a Python are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: coverage docs docs-serve notebooks peers play test reproduce bench check format clean
.DEFAULT_GOAL := test

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $@

test: check  ## lint, types, tests
	$(BIN)/python -m pytest -n 2

coverage: $(VENV)/ready  ## which lines of src/ the tests reach; a third slower than the tests alone
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

reproduce: $(VENV)/ready  ## the main job
	$(BIN)/longlag reproduce --profile quick

bench: $(VENV)/ready  ## the CPU engine over torch.nn
	$(BIN)/longlag bench cpu

docs: $(VENV)/docs  ## the site, in site/; warnings are errors
	$(BIN)/mkdocs build --quiet --strict

docs-serve: $(VENV)/docs  ## the site on loopback, rebuilt on changes
	$(BIN)/mkdocs serve

play: $(VENV)/ready  ## the playground in the browser; built again with npm if its sources have changed
	$(BIN)/python tools/playground.py
	$(BIN)/longlag play

notebooks: $(VENV)/docs  ## the tutorials as executed notebooks, in build/notebooks/
	$(BIN)/python tools/notebooks.py build/notebooks

$(VENV)/docs: $(VENV)/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --group docs
	touch $@

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv-peers/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --upgrade "pip>=25.1"
	.venv-peers/bin/pip install --quiet --constraint constraints.txt --editable . "pytest>=8"
	.venv-peers/bin/pip install --quiet --constraint constraints.txt --no-deps --group peers
	touch $@

peers: .venv-peers/ready  ## cells beside their authors' packages, in an environment of their own
	.venv-peers/bin/python -m pytest -W ignore peers

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .coverage build dist
